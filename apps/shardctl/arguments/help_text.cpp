#include "apps/shardctl/arguments/help_text.h"

#include <fmt/format.h>

#include <string_view>

#include "apps/shardctl/arguments/help.h"
#include "apps/shardctl/arguments/option_tree.h"

namespace shard::app {
namespace {

/// Lists options without environment variables, with our names for their values.
class HelpFormatter : public CLI::Formatter {
 public:
  std::string make_option_opts(const CLI::Option* option) const override { return " " + option->get_option_text(); }
};

/// Breaks a paragraph into lines of at most kColumns characters, at spaces.
std::string filled(std::string_view paragraph) {
  constexpr std::size_t kColumns = 100;
  std::string text;
  while (paragraph.size() > kColumns) {
    const std::size_t space = paragraph.rfind(' ', kColumns);
    if (space == std::string_view::npos) break;
    text.append(paragraph.substr(0, space)) += '\n';
    paragraph.remove_prefix(space + 1);
  }
  return text.append(paragraph);
}

}  // namespace

std::string help_text(const Verb* verb) {
  CLI::App app;
  CommonOptions common;
  Request ignored;
  app.set_help_flag();
  if (verb == nullptr) {
    add_global_options(app, common, ignored);
  } else {
    add_options(app, *verb, common, ignored);
  }
  HelpFormatter formatter;
  formatter.column_width(32);
  std::string text = verb == nullptr ? general_help()
                                     : fmt::format("shardctl {}: {}\n\nUsage: shardctl {}\n\nExamples:\n{}", verb->name,
                                                   verb->summary, verb->usage, verb->examples);
  if (verb != nullptr && !verb->details.empty()) text += fmt::format("\n{}\n", filled(verb->details));
  const std::string groups = formatter.make_groups(&app, CLI::AppFormatMode::Normal);
  text += CLI::detail::find_and_replace(groups, "\n\n\n", "\n\n");
  return fmt::format("{}\n{}\n{}\n", text, exit_codes_help(verb), environment_help());
}

}  // namespace shard::app
