#include "apps/shardctl/arguments/settings.h"

#include <fmt/format.h>

#include <sstream>

#include "apps/shardctl/request/request.h"

namespace shard::app {
namespace {

std::vector<CLI::Option*> settable(CLI::App& app) {
  return app.get_options([](const CLI::Option* option) {
    return !option->get_lnames().empty() && !option->check_lname("help") && !option->check_lname("version");
  });
}

bool layout_given(const std::vector<CLI::Option*>& options) {
  return std::any_of(options.begin(), options.end(),
                     [](const CLI::Option* option) { return option->count() > 0 && chooses_layout(*option); });
}

void set(CLI::Option& option, const std::vector<std::string>& values, const std::string& origin) {
  try {
    for (const std::string& value : values) option.add_result(value);
    option.run_callback();
  } catch (const CLI::ParseError& error) {
    throw usage(lower_first(error.what())).because(fmt::format("{} sets it", origin));
  }
}

}  // namespace

std::string environment_name(std::string_view option) {
  std::string name = "SHARDCTL_";
  for (const char c : option) name += c == '-' ? '_' : c >= 'a' && c <= 'z' ? static_cast<char>(c - 'a' + 'A') : c;
  return name;
}

void apply_environment(CLI::App& app, const Session& session) {
  const auto options = settable(app);
  const bool fixed = layout_given(options);
  for (CLI::Option* option : options) {
    const std::string name = environment_name(option->get_lnames().front());
    const auto value = session.env ? session.env(name) : std::nullopt;
    const bool hidden = fixed && chooses_layout(*option);
    if (option->count() == 0 && value && !value->empty() && !hidden) set(*option, {*value}, name);
  }
}

void apply_configuration(CLI::App& app, const Session& session, const Verb* verb) {
  const std::string& path = session.common.config;
  if (path.empty()) return;
  const auto file = session.fs.open(path);
  const std::vector<std::byte> bytes = read_whole(*file, 1 << 20);
  std::istringstream text(std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size()));
  const auto settings = settable(app);
  const bool fixed = layout_given(settings);
  const auto known = all_long_names();
  for (const CLI::ConfigItem& item : CLI::ConfigTOML().from_config(text)) {
    if (item.name == "++" || item.name == "--") continue;  // CLI11's marks of a section's begin and end.
    const std::string name = "--" + item.name;
    if (!contains(known, name)) {
      throw usage(fmt::format("{}: unknown key '{}'", path, item.fullname())).hint("use long option names as keys");
    }
    if (!item.parents.empty() && (verb == nullptr || item.parents.front() != verb->name)) continue;
    for (CLI::Option* option : settings) {
      const bool hidden = fixed && chooses_layout(*option);
      if (option->check_lname(item.name) && option->count() == 0 && !hidden) set(*option, item.inputs, path);
    }
  }
}

}  // namespace shard::app
