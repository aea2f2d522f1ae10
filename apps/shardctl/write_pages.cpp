/// \file
/// Writes the installed man pages and completion scripts at build time: shardctl_pages FOLDER. FOLDER has the structure
/// of share. Pages have the date of $SOURCE_DATE_EPOCH, for reproducible builds, or none.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <string>
#include <string_view>

#include "apps/shardctl/arguments/completion.h"
#include "apps/shardctl/arguments/help.h"
#include "apps/shardctl/arguments/option_tree.h"
#include "apps/shardctl/arguments/verb.h"
#include "apps/shardctl/session/versions.h"
#include "libshard/core/ascii.h"

namespace shard::app {
namespace {

/// The roff escape of a character that roff would interpret, or print as a typographic character.
std::string_view roff_of(char c) {
  switch (c) {
    case '\\':
      return "\\e";
    case '-':
      return "\\-";
    case '\'':
      return "\\(aq";
    case '`':
      return "\\(ga";
    case '^':
      return "\\(ha";
    case '~':
      return "\\(ti";
    default:
      return {};
  }
}

/// Escapes text for roff, so that no line begins with a request and option dashes stay dashes.
std::string roff(std::string_view text) {
  std::string result;
  for (const char c : text) {
    const bool begins_line = result.empty() || result.back() == '\n';
    if (c == '.' && begins_line) result += "\\&";
    const std::string_view other = roff_of(c);
    result += other.empty() ? std::string_view(&c, 1) : other;
  }
  return result;
}

std::string bold(std::string_view text) { return fmt::format("\\fB{}\\fR", roff(text)); }
std::string italic(std::string_view text) { return fmt::format("\\fI{}\\fR", roff(text)); }

/// Lines that roff must not join. They begin with two spaces, as in the output of help.
std::string examples(std::string_view lines) {
  std::string text = CLI::detail::find_and_replace("\n" + std::string(lines), "\n  ", "\n");
  CLI::detail::trim(text);
  return fmt::format(".SH EXAMPLES\n.EX\n{}\n.EE\n", roff(text));
}

std::string option_entry(const CLI::Option& option) {
  std::vector<std::string> names;
  for (const std::string& name : option.get_snames()) names.push_back(bold("-" + name));
  for (const std::string& name : option.get_lnames()) names.push_back(bold("--" + name));
  std::string text = fmt::format(".TP\n{}", fmt::join(names, ", "));
  if (option.get_items_expected_max() > 0) text += " " + italic(option.get_option_text());
  return fmt::format("{}\n{}\n", text, roff(option.get_description()));
}

/// The options under the headings of help.
std::string option_sections(CLI::App& app) {
  std::string text = ".SH OPTIONS\n";
  for (const std::string& group : app.get_groups()) {
    const auto listed = app.get_options(
        [&group](const CLI::Option* option) { return option->get_group() == group && !option->get_positional(); });
    if (group.empty() || listed.empty()) continue;
    text += fmt::format(".SS {}\n", roff(group));
    for (const CLI::Option* option : listed) text += option_entry(*option);
  }
  return text;
}

std::string exit_status(const Verb* verb) {
  std::string text = ".SH EXIT STATUS\n";
  for (const ExitCode& each : exit_codes(verb)) {
    text += fmt::format(".TP\n{}\n{}\n", bold(fmt::to_string(each.code)), roff(each.meaning));
  }
  return text;
}

std::string page_name(const Verb& verb) { return fmt::format("shardctl-{}", verb.name); }

/// The names of the pages of the program and of all verbs except `verb`.
std::string see_also(const Verb* verb) {
  std::vector<std::string> pages;
  if (verb != nullptr) pages.push_back(bold("shardctl") + "(1)");
  for (const Verb& each : verbs()) {
    if (&each != verb) pages.push_back(bold(page_name(each)) + "(1)");
  }
  return fmt::format(".SH SEE ALSO\n{}\n", fmt::join(pages, ",\n"));
}

std::string upper_case(std::string_view name) {
  std::string text(name);
  std::ranges::transform(text, text.begin(), to_upper);
  return text;
}

std::string head(std::string_view name, std::string_view summary, std::string_view usage, std::string_view date) {
  return fmt::format(".TH {} 1 \"{}\" \"shardctl {}\" \"User Commands\"\n.SH NAME\n{} \\- {}\n.SH SYNOPSIS\n{}\n",
                     roff(upper_case(name)), date, own_version(), roff(name), roff(summary), roff(usage));
}

std::string environment() { return fmt::format(".SH ENVIRONMENT\n{}\n", roff(environment_help())); }

/// A page in the macros of man(7) and in ASCII. \param date  for its foot, such as "2026-01-31"; may be empty
std::string verb_page(const Verb& verb, std::string_view date) {
  OptionTree tree(verb);
  std::string text = head(page_name(verb), verb.summary, fmt::format("shardctl {}", verb.usage), date);
  if (!verb.details.empty()) text += fmt::format(".SH DESCRIPTION\n{}\n", roff(verb.details));
  return text + option_sections(tree.app) + exit_status(&verb) + environment() + examples(verb.examples) +
         see_also(&verb);
}

std::string program_page(std::string_view date) {
  OptionTree tree(add_global_options);
  std::string text =
      head("shardctl", "inspect, split, assemble and convert sharded model checkpoints", program_usage(), date);
  text += fmt::format(".SH DESCRIPTION\n{}\nSRC is a file, a folder, or several files of one checkpoint.\n.SH VERBS\n",
                      roff(program_summary()));
  for (const Verb& verb : verbs()) text += fmt::format(".TP\n{}\n{}\n", bold(verb.name), roff(verb.summary));
  return text + option_sections(tree.app) + exit_status(nullptr) + environment() + examples(program_examples()) +
         see_also(nullptr);
}

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
  write(folder / "man/man1/shardctl.1", program_page(date));
  for (const Verb& verb : verbs()) {
    write(folder / "man/man1" / ("shardctl-" + std::string(verb.name) + ".1"), verb_page(verb, date));
  }
  write(folder / "bash-completion/completions/shardctl", completion_script("bash"));
  write(folder / "zsh/site-functions/_shardctl", completion_script("zsh"));
  write(folder / "fish/vendor_completions.d/shardctl.fish", completion_script("fish"));
}

}  // namespace
}  // namespace shard::app

int main(int argc, char** argv) {
  try {
    if (argc != 2) throw std::runtime_error("usage: shardctl_pages FOLDER");
    shard::app::write_all(argv[1]);
  } catch (const std::exception& error) {
    std::cerr << "shardctl_pages: " << error.what() << '\n';
    return 1;
  }
}
