#include "apps/shardctl/arguments/help.h"

#include <fmt/format.h>

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
  std::vector<ExitCode> codes{{0, verb == nullptr ? "done, and on disk; diff: equal; verify: good" : verb->success}};
  if (!answer.empty()) codes.push_back({1, answer});
  codes.push_back({2, bad_usage(uses)});
  if (uses.sources) {
    codes.push_back({3, "input not found or not readable"});
  } else if (verb->name != "help") {  // help ignores all options.
    codes.push_back({3, "--config: file not found or not readable"});
  }
  if (uses.sources) codes.push_back({4, "input damaged, inconsistent, in an unknown format, or unsafe to read"});
  if (uses.target) codes.push_back({5, "output exists (use --force), or source and output overlap"});
  if (!uses.target && uses.page)
    codes.push_back({5, "--html: the page exists and --force was not given, or the page is inside a source"});
  codes.push_back({6, "resources: disk full, memory limit, output not writable"});
  if (uses.ranks) codes.push_back({7, "launch or communication failure: a rank died or stopped responding"});
  if (uses.sources) codes.push_back({8, "valid request that this build or format does not support"});
  codes.push_back({70, "internal error"});
  codes.push_back({130, "SIGINT"});
  codes.push_back({143, "SIGTERM"});
  return codes;
}

std::string_view environment_help() {
  return "Any option can be set in the environment: SHARDCTL_MAX_MEMORY=1GiB is --max-memory 1GiB.";
}

std::string short_help() {
  return fmt::format("{}\n{}\n{}\nRun 'shardctl help VERB' for details.\n", what_and_usage(), first_examples(),
                     verb_list());
}

std::string general_help() {
  return fmt::format("{}\nSRC is a file, a folder, or several files of one checkpoint.\n\n{}\n{}", what_and_usage(),
                     first_examples(), verb_list());
}

std::string exit_codes_help(const Verb* verb) {
  std::string text = "Exit codes:\n";
  for (const ExitCode& each : exit_codes(verb)) text += fmt::format("  {:<5}{}\n", each.code, each.meaning);
  return text;
}

}  // namespace shard::app
