#include "apps/shardctl/help_text.h"

#include <fmt/format.h>

#include "apps/shardctl/help.h"
#include "apps/shardctl/option_tree.h"

namespace shard::app {
namespace {

/// Help of one verb's options: no environment names, no types but ours.
class HelpFormatter : public CLI::Formatter {
 public:
  std::string make_option_opts(const CLI::Option* option) const override { return " " + option->get_option_text(); }
};

}  // namespace

std::string help_text(const std::string& verb) {
  CLI::App app;
  Options ignored;
  const VerbHelp* help = find_verb(verb);
  app.set_help_flag();
  if (help == nullptr) {
    add_global_options(app, ignored);
  } else {
    add_options(app, verb, ignored);
  }
  HelpFormatter formatter;
  formatter.column_width(32);
  std::string text = help == nullptr ? general_help()
                                     : fmt::format("shardctl {}: {}\n\nUsage: shardctl {}\n\nExamples:\n{}", help->name,
                                                   help->summary, help->usage, help->examples);
  if (help != nullptr && !help->details.empty()) text += fmt::format("\n{}\n", help->details);
  const std::string groups = formatter.make_groups(&app, CLI::AppFormatMode::Normal);
  text += CLI::detail::find_and_replace(groups, "\n\n\n", "\n\n");
  return text + "\n" + exit_codes_help(verb) +
         "\nEvery option can be set in the environment: SHARDCTL_ and its name in capitals "
         "(SHARDCTL_MAX_MEMORY=1GiB).\n";
}

}  // namespace shard::app
