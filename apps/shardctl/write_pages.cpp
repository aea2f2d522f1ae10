/// \file
/// Writes the man pages and the completion scripts that are installed, at build time: shardctl_pages FOLDER. Below
/// FOLDER they lie as below share. The date of the pages is $SOURCE_DATE_EPOCH, as reproducible builds have it, else
/// absent.
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <string>
#include <string_view>

#include "apps/shardctl/arguments/completion.h"
#include "apps/shardctl/arguments/man_page.h"
#include "apps/shardctl/arguments/verb.h"

namespace {

std::string page_date() {
  const char* seconds = std::getenv("SOURCE_DATE_EPOCH");
  if (seconds == nullptr) return {};
  const std::time_t time = std::atoll(seconds);
  char text[16];
  return {text, std::strftime(text, sizeof text, "%Y-%m-%d", std::gmtime(&time))};
}

void write(const std::filesystem::path& path, std::string_view text) {
  std::filesystem::create_directories(path.parent_path());
  std::ofstream file(path);
  file << text;
  file.close();
  if (!file) throw std::runtime_error("cannot write '" + path.string() + "'");
}

void write_all(const std::filesystem::path& folder) {
  const std::string date = page_date();
  write(folder / "man/man1/shardctl.1", shard::app::man_page(nullptr, date));
  for (const shard::app::Verb& verb : shard::app::verbs()) {
    write(folder / "man/man1" / ("shardctl-" + std::string(verb.name) + ".1"), shard::app::man_page(&verb, date));
  }
  write(folder / "bash-completion/completions/shardctl", shard::app::completion_script("bash"));
  write(folder / "zsh/site-functions/_shardctl", shard::app::completion_script("zsh"));
  write(folder / "fish/vendor_completions.d/shardctl.fish", shard::app::completion_script("fish"));
}

}  // namespace

int main(int argc, char** argv) {
  try {
    if (argc != 2) throw std::runtime_error("usage: shardctl_pages FOLDER");
    write_all(argv[1]);
  } catch (const std::exception& error) {
    std::cerr << "shardctl_pages: " << error.what() << '\n';
    return 1;
  }
}
