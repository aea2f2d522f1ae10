#include "apps/shardctl/arguments/help.h"

#include <fmt/format.h>

#include <array>
#include <optional>
#include <utility>

#include "apps/shardctl/arguments/option_tree.h"
#include "apps/shardctl/request/request.h"
#include "libshard/core/contains.h"

namespace shard::app {
namespace {

std::string what_and_usage() { return fmt::format("{}\n\nUsage: {}\n", program_summary(), program_usage()); }

std::string first_examples() { return fmt::format("Examples:\n{}", program_examples()); }

std::string verb_list() {
  std::string text = "Verbs:\n";
  for (const Verb& verb : verbs()) text += fmt::format("  {:<12}{}\n", verb.name, verb.summary);
  return text;
}

std::string_view bad_usage(const Uses& uses) {
  if (!uses.sources) return uses.rank_options ? "bad usage, contradicting launcher variables" : "bad usage";
  if (!uses.rank_options) return "bad usage, bad layout document, name clash after renaming";
  return "bad usage, bad layout document, name clash after renaming, contradicting launcher variables";
}

std::string general_help() {
  return fmt::format(
      "{}\nSRC is a file, a folder, several files of one checkpoint, or a URL (s3://, gs://, hf://, "
      "https://).\n\n{}\n{}",
      what_and_usage(), first_examples(), verb_list());
}

std::string exit_codes_help(const Verb* verb) {
  std::string text = "Exit codes:\n";
  for (const ExitCode& each : exit_codes(verb)) text += fmt::format("  {:<5}{}\n", each.code, each.meaning);
  return text;
}

/// Lists options without their environment variables and with our names for their values.
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

/// Groups of options that many verbs share.
constexpr std::array<std::string_view, 5> kShared{"Source", "Selection and names", "Model maps", "Ranks",
                                                  "Global options"};
/// Options in these groups that most commands need.
constexpr std::array<std::string_view, 6> kCommon{"include", "exclude", "objects", "threads", "max-memory", "json"};

/// Long names of the options that only `verb` has.
std::vector<std::string> own_names(const Verb& verb) {
  CLI::App app;
  Request ignored;
  app.set_help_flag();
  if (verb.add_options != nullptr) verb.add_options(app, ignored);
  return long_names(app);
}

/// Moves the common options of shared groups into one group and hides the others, except those that only `verb` has.
/// \returns lines that name the hidden options by group; empty if there are none.
std::string hide_shared(CLI::App& app, const Verb& verb) {
  const std::vector<std::string> own = own_names(verb);
  std::vector<std::pair<std::string, std::string>> hidden;
  for (CLI::Option* option : app.get_options([](const CLI::Option*) { return true; })) {
    const std::string group = option->get_group();
    if (option->get_lnames().empty() || !contains(kShared, group)) continue;
    const std::string name = option->get_lnames().front(), dashed = "--" + name;
    if (contains(own, dashed)) continue;
    const bool is_common = contains(kCommon, name);
    option->group(is_common ? "Common options" : "");
    if (is_common) continue;
    if (hidden.empty() || hidden.back().first != group) hidden.emplace_back(group, "");
    hidden.back().second += (hidden.back().second.empty() ? "" : ", ") + dashed;
  }
  std::string lines;
  for (const auto& [group, names] : hidden) {
    const std::string text = filled(fmt::format("  {}: {}", group, names));
    lines += CLI::detail::find_and_replace(text, "\n", "\n    ") + "\n";
  }
  return lines;
}

}  // namespace

std::string_view program_summary() {
  return "shardctl inspects, merges, splits, reshards and converts sharded model checkpoints.";
}

std::string_view program_usage() { return "shardctl [global options] VERB SRC... [-o DST] [options]"; }

std::string_view program_examples() {
  return "  shardctl inspect checkpoint/\n"
         "  shardctl gather checkpoint/ -o model.safetensors\n"
         "  shardctl split model.safetensors -o checkpoint/ --ranks 8\n"
         "  shardctl reshard checkpoint/ -o other/ --mesh dp=2,tp=4 --place '**=R,S(0)'\n"
         "  shardctl diff checkpoint/ model.safetensors\n";
}

std::vector<ExitCode> exit_codes(const Verb* verb) {
  const Uses all{.sources = true, .target = true, .target_layout = true, .rank_options = true, .ranks = true};
  const Uses uses = verb == nullptr ? all : verb->uses;
  const std::string_view answer =
      verb == nullptr ? "diff: different; verify: findings; map check: unmatched tensors" : verb->no_answer;
  std::string_view success = uses.target ? "done, and on disk" : "done";
  if (verb == nullptr) success = "done, and on disk; diff: equal; verify: good";
  if (verb != nullptr && !verb->success.empty()) success = verb->success;
  std::vector<ExitCode> codes{{0, success}};
  if (!answer.empty()) codes.push_back({1, answer});
  codes.push_back({2, bad_usage(uses)});
  if (uses.sources) {
    codes.push_back({3, "input not found or not readable"});
  } else if (verb->name != "help") {  // help ignores all options.
    codes.push_back({3, "--config: file not found or not readable"});
  }
  if (uses.sources) codes.push_back({4, "input damaged, inconsistent, in an unknown format, or unsafe to read"});
  if (uses.target) {
    codes.push_back({5, "output exists (use --force), or source and output overlap"});
  } else if (uses.page) {
    codes.push_back({5, "--html: the page exists and --force was not given, or the page is inside a source"});
  } else if (verb->name != "help") {
    codes.push_back({5, "--log-file: this command reads the file, or the folder that contains it"});
  }
  codes.push_back({6, "resources: disk full, memory limit, output not writable"});
  if (uses.ranks) codes.push_back({7, "launch or communication failure: a rank died or stopped responding"});
  if (uses.sources) codes.push_back({8, "valid request that this build or format does not support"});
  codes.push_back({70, "internal error"});
  codes.push_back({129, "SIGHUP"});
  codes.push_back({130, "SIGINT"});
  codes.push_back({143, "SIGTERM"});
  return codes;
}

std::string_view environment_help() {
  return "Any option can be set in the environment: SHARDCTL_MAX_MEMORY=1GiB is --max-memory 1GiB.\n"
         "A repeatable option has a value per line: SHARDCTL_EXCLUDE=$'a\\nb' is --exclude a --exclude b.";
}

std::string short_help() {
  return fmt::format("{}\n{}\n{}\nRun 'shardctl help VERB' for details.\n", what_and_usage(), first_examples(),
                     verb_list());
}

std::string help_text(const Verb* verb, bool all_options) {
  std::optional<OptionTree> tree;
  verb == nullptr ? tree.emplace(add_global_options) : tree.emplace(*verb);
  const std::string more = verb == nullptr || all_options ? std::string() : hide_shared(tree->app, *verb);
  HelpFormatter formatter;
  formatter.column_width(32);
  std::string text = verb == nullptr ? general_help()
                                     : fmt::format("shardctl {}: {}\n\nUsage: shardctl {}\n\nExamples:\n{}", verb->name,
                                                   verb->summary, verb->usage, verb->examples);
  if (verb != nullptr && !verb->details.empty()) text += fmt::format("\n{}\n", filled(verb->details));
  text += formatter.make_groups(&tree->app, CLI::AppFormatMode::Normal);
  if (!more.empty()) {
    text += fmt::format("\nMore options, described by 'shardctl help {0} --all' and the man page shardctl-{0}(1):\n{1}",
                        verb->name, more);
  }
  text += fmt::format("\n{}\n{}\n", exit_codes_help(verb), environment_help());
  while (text.find("\n\n\n") != std::string::npos) text = CLI::detail::find_and_replace(text, "\n\n\n", "\n\n");
  return text;
}

}  // namespace shard::app
