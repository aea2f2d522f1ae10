#include "apps/shardctl/help.h"

#include <fmt/format.h>

namespace shard::app {
namespace {

constexpr std::string_view kWhat =
    "shardctl inspects, splits, assembles and converts sharded model checkpoints.\n\n"
    "Usage: shardctl [global options] VERB SRC... [-o DST] [options]\n";

constexpr std::string_view kFirstExamples =
    "Examples:\n"
    "  shardctl inspect checkpoint/\n"
    "  shardctl gather checkpoint/ -o model.safetensors\n"
    "  shardctl split model.safetensors -o checkpoint/ --ranks 8\n"
    "  shardctl reshard checkpoint/ -o other/ --mesh dp=2,tp=4 --place '**=R,S(0)'\n"
    "  shardctl diff checkpoint/ model.safetensors\n";

std::string verb_list() {
  std::string text = "Verbs:\n";
  for (const Verb& verb : verbs()) text += fmt::format("  {:<12}{}\n", verb.name, verb.summary);
  return text;
}

}  // namespace

std::string short_help() {
  return fmt::format("{}\n{}\n{}\n'shardctl help VERB' says more.\n", kWhat, kFirstExamples, verb_list());
}

std::string general_help() {
  return fmt::format("{}\nSRC is a file, a folder, or several files of one checkpoint.\n\n{}\n{}", kWhat,
                     kFirstExamples, verb_list());
}

std::string exit_codes_help(const Verb* verb) {
  const Uses all{.sources = true, .target = true, .target_layout = true, .rank_options = true, .ranks = true};
  const Uses uses = verb == nullptr ? all : verb->uses;
  std::string text = "Exit codes:\n";
  const auto add = [&text](int code, std::string_view meaning) { text += fmt::format("  {:<5}{}\n", code, meaning); };
  add(0, verb == nullptr ? "done, and on disk; diff: equal" : verb->success);
  if (verb == nullptr || !verb->no_answer.empty()) add(1, verb == nullptr ? "diff: differs" : verb->no_answer);
  add(2, "bad usage, bad layout document, name clash after renaming");
  add(3, "input not found or not readable");
  add(4, "input damaged, contradictory, of unknown format, or refused for safety");
  if (uses.target) add(5, "output exists and --force is not given, or source and output overlap");
  add(6, "resources: disk full, memory limit, output not writable");
  if (uses.rank_options) add(7, "launch or communication failure: a rank is lost or silent");
  add(8, "valid request that this build or format cannot do");
  add(70, "internal error");
  add(130, "SIGINT");
  add(143, "SIGTERM");
  return text;
}

}  // namespace shard::app
