#include "apps/shardctl/help.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

namespace shard::app {
namespace {

constexpr std::array<VerbHelp, 12> kVerbs{{
    {"inspect", "inspect SRC... [options]", "show what is in a checkpoint; reads metadata only",
     "Prints a summary, then one line a tensor (name, dtype, shape, bytes, where it is cut and over which ranks, "
     "file)\n"
     "and one an object; -v adds a line for each stored piece. S(0) is a cut along dimension 0 into pieces of "
     "torch.chunk's\n"
     "sizes, R a replica, as DTensor says it. With --json one document shardctl.inspect/1, which says for each piece "
     "where\n"
     "its bytes lie.",
     "  shardctl inspect model.safetensors\n"
     "  shardctl inspect checkpoint/ --include '**.q_proj.weight'\n"
     "  shardctl inspect checkpoint/ --json | jq '.tensors[].name'\n"},
    {"split", "split SRC... -o DST [options]", "cut a checkpoint for N ranks or into N files",
     "With --ranks, --mesh, --layout or --like every tensor is cut into pieces (default format: dcp); with --shards "
     "or\n"
     "--max-shard-size, or without any, whole tensors go into several files (default: safetensors, 5GB a file).",
     "  shardctl split model.safetensors -o ckpt --ranks 8\n"
     "  shardctl split model.safetensors -o ckpt --mesh dp=2,tp=4 --place '**.q_proj.weight=R,S(0)'\n"
     "  shardctl split model.pt -o ranks --mesh tp=4 --place '**.weight=S(0)' --to torch-ranks --as dtensor\n"
     "  shardctl split model.safetensors -o folder --max-shard-size 2GB\n"},
    {"gather", "gather SRC... -o DST [options]", "put whole tensors together",
     "Writes whole tensors: one file if DST ends in .safetensors, .pt, .pth or .bin, else a folder (safetensors "
     "unless\n"
     "--to says otherwise, files of at most 5GB).",
     "  shardctl gather ckpt -o model.safetensors --objects drop\n"
     "  shardctl gather ckpt -o model.pt\n"
     "  shardctl gather ckpt -o hf-folder --max-shard-size 5GB --strip-prefix model.\n"},
    {"reshard", "reshard SRC... -o DST (--ranks N | --mesh ... | --shards N | ...) [options]",
     "from the layout it has to another one, in one pass",
     "Bytes go from where they lie to where they belong, never through whole tensors. The format stays unless --to "
     "says\n"
     "otherwise.",
     "  shardctl reshard ckpt -o ckpt-for-6 --ranks 6\n"
     "  shardctl reshard ckpt -o ckpt-tp --mesh tp=4 --place '**.o_proj.weight=S(1)' --place '**=S(0)'\n"
     "  shardctl reshard ckpt -o ckpt-like --like other-ckpt\n"},
    {"convert", "convert SRC... -o DST [--to FORMAT] [options]", "to another format",
     "Keeps the layout where the target can hold pieces; safetensors and torch get whole tensors.",
     "  shardctl convert model.pt -o model.safetensors --objects drop\n"
     "  shardctl convert model.safetensors -o ckpt --to dcp\n"
     "  shardctl convert model.safetensors -o half.safetensors --cast '**=bfloat16'\n"},
    {"diff", "diff A B [options]", "compare two checkpoints by content",
     "Any formats and layouts. Equal means: the same names, dtypes, shapes, values and objects. Values are equal as\n"
     "numbers: 0 equals -0, and NaN equals nothing unless --equal-nan is given. With tolerances an element is equal "
     "if\n"
     "any of them accepts it; max_abs, max_rel and max_ulp are over the elements that differ.",
     "  shardctl diff model.safetensors ckpt\n"
     "  shardctl diff before.pt after.pt --rtol 1e-5 --atol 1e-8\n"
     "  shardctl diff a b --json | jq -r '.values[].name'\n"},
    {"digest", "digest SRC... [options]", "one hash per tensor and one per checkpoint",
     "The same for any layout and format. A line a tensor (digest, two spaces, name), and at last the word checkpoint\n"
     "and the digest of all. Objects are not in it.",
     "  shardctl digest ckpt\n"
     "  shardctl digest ckpt --algorithm sha256\n"
     "  shardctl digest ckpt | tail -n 1\n"},
    {"cat", "cat SRC... NAME[slice] [options]", "print a tensor, a slice of it, or an object",
     "Reads only the bytes of the slice. A slice has Python's rules, without steps: NAME[0:8,:], NAME[-1], "
     "NAME[...,0].\n"
     "Text is one row a line (a vector: one element), each number in full; --format npy loads in numpy, --format raw "
     "is\n"
     "the packed little-endian elements. --json prints a document shardctl.cat/1 with all elements in one list.",
     "  shardctl cat checkpoint/ layers.0.mlp.weight\n"
     "  shardctl cat checkpoint/ 'layers.0.mlp.weight[0:8,:]' --format npy > rows.npy\n"
     "  shardctl cat model.safetensors 'embed.weight[-1]' --cast '**=float32' --format raw | sha256sum\n"
     "  shardctl cat train.pt optimizer.param_groups.0.lr\n"},
    {"env", "env [options]", "show what this machine offers and which libraries are used", "",
     "  shardctl env --json\n"},
    {"completion", "completion SHELL", "print a script that lets bash, zsh or fish complete the command line",
     "The shell sources it: verbs, options, the words that options take, and files.",
     "  source <(shardctl completion bash)\n"
     "  shardctl completion bash > ~/.local/share/bash-completion/completions/shardctl\n"
     "  shardctl completion zsh > ~/.zfunc/_shardctl        # a folder of fpath\n"
     "  shardctl completion fish > ~/.config/fish/completions/shardctl.fish\n"},
    {"help", "help [VERB]", "show help of a verb", "", "  shardctl help split\n"},
    {"version", "version [options]", "show the version and those of libraries", "", "  shardctl version\n"},
}};

struct ExitCode {
  int code;
  std::string_view meaning;
  std::string_view verbs;  ///< Empty: all.
};
constexpr std::string_view kGeneral = "general";  ///< Stands for the help that is of no verb.
constexpr std::string_view kCopies = "split gather reshard convert";
constexpr std::string_view kWriters = "split gather reshard convert general";
constexpr std::string_view kOfRanks = "general inspect split gather reshard convert diff digest cat env";
constexpr std::array<ExitCode, 16> kExitCodes{{
    {0, "done, and on disk; diff: equal", kGeneral},
    {0, "done, and on disk", kCopies},
    {0, "equal", "diff"},
    {0, "done", "inspect digest cat env completion help version"},
    {1, "diff: differs", kGeneral},
    {1, "differs", "diff"},
    {2, "bad usage, bad layout document, name clash after renaming", ""},
    {3, "input not found or not readable", ""},
    {4, "input damaged, contradicting, of unknown format, or refused for safety", ""},
    {5, "output exists and no --force, or source and output overlap", kWriters},
    {6, "resources: disk full, memory limit, output not writable", ""},
    {7, "launch or communication failure: a rank is lost or silent", kOfRanks},
    {8, "valid request that this build or format cannot do", ""},
    {70, "internal error", ""},
    {130, "SIGINT", ""},
    {143, "SIGTERM", ""},
}};

std::string verb_list() {
  std::string text = "Verbs:\n";
  for (const VerbHelp& verb : kVerbs) text += fmt::format("  {:<12}{}\n", verb.name, verb.summary);
  return text;
}

constexpr std::string_view kFirstExamples =
    "Examples:\n"
    "  shardctl inspect checkpoint/\n"
    "  shardctl gather checkpoint/ -o model.safetensors\n"
    "  shardctl split model.safetensors -o checkpoint/ --ranks 8\n"
    "  shardctl reshard checkpoint/ -o other/ --mesh dp=2,tp=4 --place '**=R,S(0)'\n"
    "  shardctl diff checkpoint/ model.safetensors\n";

}  // namespace

std::span<const VerbHelp> verbs() { return kVerbs; }

const VerbHelp* find_verb(std::string_view name) {
  const auto* verb = std::find_if(kVerbs.begin(), kVerbs.end(), [&](const VerbHelp& v) { return v.name == name; });
  return verb == kVerbs.end() ? nullptr : verb;
}

std::string short_help() {
  return fmt::format(
      "shardctl inspects, cuts, joins and converts sharded model checkpoints.\n\n"
      "Usage: shardctl [global options] VERB SRC... [-o DST] [options]\n\n{}\n{}\n"
      "'shardctl help VERB' says more.\n",
      kFirstExamples, verb_list());
}

std::string general_help() {
  return fmt::format(
      "shardctl inspects, cuts, joins and converts sharded model checkpoints.\n\n"
      "Usage: shardctl [global options] VERB SRC... [-o DST] [options]\n\n"
      "SRC is a file, a folder, or several files of one checkpoint.\n\n{}\n{}",
      kFirstExamples, verb_list());
}

std::string exit_codes_help(std::string_view verb) {
  std::string text = "Exit codes:\n";
  for (const ExitCode& code : kExitCodes) {
    const bool applies =
        code.verbs.empty() || code.verbs.find(verb.empty() ? kGeneral : verb) != std::string_view::npos;
    if (applies) text += fmt::format("  {:<5}{}\n", code.code, code.meaning);
  }
  return text;
}

}  // namespace shard::app
