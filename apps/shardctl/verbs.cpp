#include "apps/shardctl/verbs.h"

#include <algorithm>
#include <array>

namespace shard::app {
namespace {

constexpr Uses kReads{
    .sources = true, .selection = true, .numbers = true, .maps = true, .rank_options = true, .ranks = true};
constexpr Uses kShows{.sources = true,
                      .selection = true,
                      .page = true,
                      .numbers = true,
                      .maps = true,
                      .rank_options = true,
                      .ranks = true};
constexpr Uses kVerifies{.sources = true, .page = true, .rank_options = true, .ranks = true};
constexpr Uses kGathers{.sources = true,
                        .selection = true,
                        .target = true,
                        .numbers = true,
                        .maps = true,
                        .rank_options = true,
                        .ranks = true};
constexpr Uses kCuts{.sources = true,
                     .selection = true,
                     .target = true,
                     .target_layout = true,
                     .numbers = true,
                     .maps = true,
                     .rank_options = true,
                     .ranks = true};
constexpr std::string_view kDone = "done";
constexpr std::string_view kOnDisk = "done, and on disk";

const std::array<Verb, 16> kVerbs{{
    {.name = "inspect",
     .usage = "inspect SRC... [options]",
     .summary = "show what is in a checkpoint; reads metadata only",
     .details =
         "Prints a summary (format, parameters, bytes by dtype, ranks), then one line for each tensor (name,\n"
         "dtype, shape, bytes, how it is cut and over which ranks, file) and one for each object; -v adds a line\n"
         "for each stored chunk. On a terminal, layers that are alike share one line, with a range of numbers\n"
         "in the name and their count; --all lists each. S(0) is a cut along dimension 0 into pieces of\n"
         "torch.chunk's sizes and R a replica, as in DTensor. --json prints one document shardctl.inspect/1,\n"
         "which also gives the offset of each chunk in its file; --html FILE writes it as a page with a drawing of\n"
         "where each tensor is cut.",
     .examples = "  shardctl inspect model.safetensors\n"
                 "  shardctl inspect checkpoint/ --include '**.q_proj.weight'\n"
                 "  shardctl inspect checkpoint/ --json | jq '.tensors[].name'\n"
                 "  shardctl inspect checkpoint/ --html checkpoint.html\n",
     .success = kDone,
     .uses = kShows,
     .add_options = add_inspect,
     .run = run_inspect},
    {.name = "split",
     .usage = "split SRC... -o DST [options]",
     .summary = "cut a checkpoint for N ranks or into N files",
     .details = "With --ranks, --mesh, --layout or --like every tensor is cut into pieces (default format: dcp). With\n"
                "--shards or --max-shard-size, or without a layout, whole tensors are spread over several files\n"
                "(default format: safetensors; default size: 5GB per file).",
     .examples =
         "  shardctl split model.safetensors -o ckpt --ranks 8\n"
         "  shardctl split model.safetensors -o ckpt --mesh dp=2,tp=4 --place '**.q_proj.weight=R,S(0)'\n"
         "  shardctl split model.pt -o ranks --mesh tp=4 --place '**.weight=S(0)' --to torch-ranks --as dtensor\n"
         "  shardctl split model.safetensors -o folder --max-shard-size 2GB\n",
     .success = kOnDisk,
     .uses = kCuts,
     .target = {.format = "safetensors", .format_of_pieces = "dcp", .remakes = true},
     .run = run_copy},
    {.name = "gather",
     .usage = "gather SRC... -o DST [options]",
     .summary = "assemble whole tensors",
     .details = "Writes whole tensors: a file if DST ends in .safetensors, .pt, .pth, .bin, .ckpt or .h5,\n"
                "otherwise a folder (safetensors unless --to names a different format, files of at most 5GB).",
     .examples = "  shardctl gather ckpt -o model.safetensors --objects drop\n"
                 "  shardctl gather ckpt -o model.pt\n"
                 "  shardctl gather ckpt -o hf-folder --max-shard-size 5GB --strip-prefix model.\n",
     .success = kOnDisk,
     .uses = kGathers,
     .target = {.format = "safetensors"},
     .run = run_copy},
    {.name = "reshard",
     .usage = "reshard SRC... -o DST (--ranks N | --mesh ... | --shards N | ...) [options]",
     .summary = "change a checkpoint's layout in one pass",
     .details = "Copies each byte straight from its source chunk to its target chunk, never through whole tensors.\n"
                "Keeps the format unless --to names another one.",
     .examples = "  shardctl reshard ckpt -o ckpt-for-6 --ranks 6\n"
                 "  shardctl reshard ckpt -o ckpt-tp --mesh tp=4 --place '**.o_proj.weight=S(1)' --place '**=S(0)'\n"
                 "  shardctl reshard ckpt -o ckpt-like --like other-ckpt\n",
     .success = kOnDisk,
     .uses = kCuts,
     .target = {.keeps_format = true, .needs_layout = true, .remakes = true},
     .run = run_copy},
    {.name = "convert",
     .usage = "convert SRC... -o DST [--to FORMAT] [options]",
     .summary = "write a checkpoint in another format",
     .details = "Keeps the layout where the target format can hold pieces; safetensors and torch get whole tensors.",
     .examples = "  shardctl convert model.pt -o model.safetensors --objects drop\n"
                 "  shardctl convert model.safetensors -o ckpt --to dcp\n"
                 "  shardctl convert model.safetensors -o half.safetensors --cast '**=bfloat16'\n",
     .success = kOnDisk,
     .uses = kCuts,
     .target = {.keeps_layout = true, .remakes = true},
     .run = run_copy},
    {.name = "export",
     .usage = "export SRC... -o DST [options]",
     .summary = "write a folder that transformers, vLLM and llama.cpp's converter load",
     .details =
         "Finds the model's checkpoint in what a trainer left (checkpoint-N, global_step_N, step-N, the folder of a "
         "run)\n"
         "and says which it took. Keeps the model's tensors only, and takes away what wrappers add to names (module.,\n"
         "_orig_mod., _fsdp_wrapped_module., _checkpoint_wrapped_module., _forward_module., a doubled model.). Stores "
         "a\n"
         "tied head once. Copies config, tokenizer, chat templates and *.py from --hf-ref, else from the folder\n"
         "huggingface or the files beside SRC; names and shapes must be those of the weights there, if there are any.\n"
         "With --dry-run it prints what it found, what it renames and which files it writes.",
     .examples = "  shardctl export checkpoint-500 -o model\n"
                 "  shardctl export global_step_100/actor -o model --dtype bfloat16\n"
                 "  shardctl export checkpoint/step-1000 -o model --hf-ref ~/models/Qwen3-8B\n",
     .success = kOnDisk,
     .uses = kGathers,
     .target = {.format = "safetensors"},
     .add_options = add_export,
     .check = check_export,
     .run = run_export},
    {.name = "repair",
     .usage = "repair SRC... -o DST [options]",
     .summary = "save what is left of a damaged checkpoint",
     .details =
         "Reads all of SRC, checks every checksum, and writes a new checkpoint of the same format and layout with\n"
         "the tensors and objects that are whole. Never writes to SRC. Rebuilds lost or damaged indexes, directories\n"
         "of zips and .metadata, and takes a damaged replica from another rank. Nothing is guessed or filled in: what\n"
         "is lost is absent in DST, listed on stderr and in --json, and noted in DST's metadata (shardctl.lost).\n"
         "Items of dcp do not carry names: where .metadata is lost, --like names another checkpoint of the same job.\n"
         "What is lost is known when all was read, so one process reads it, on all its cores; several ranks are "
         "refused.\n"
         "Exit code 0 means that DST is on disk, also where something was lost; 4 that nothing can be saved.",
     .examples = "  shardctl repair cut.safetensors -o repaired.safetensors\n"
                 "  shardctl repair step-1000 -o step-1000-repaired --like step-900\n"
                 "  shardctl repair model.pt -o repaired.pt --json | jq -r '.lost[].name'\n",
     .success = kOnDisk,
     .uses = {.sources = true, .selection = true, .target = true},
     .target = {.keeps_format = true, .keeps_layout = true},
     .add_options = add_repair,
     .run = run_repair},
    {.name = "verify",
     .usage = "verify SRC... [options]",
     .summary = "check a whole checkpoint; print all that is wrong with it",
     .details =
         "Reads every byte once: headers, directories and indexes, the CRC-32 of every zip record, coverage of\n"
         "tensors, replicas byte for byte, facts about ranks, missing and extra files. Where a manifest lies in the\n"
         "folder (shardctl.manifest.json) or beside the file (DST.manifest.json), or --against names one, each block\n"
         "of 4 MiB is compared with it. Prints one line for each finding, the worst first, and a verdict. Warnings\n"
         "do not count. Content that is not read here (classes outside the list) is counted and named, not called\n"
         "damaged, and other entries of the folder are named as not checked.\n"
         "--json prints one document shardctl.verify/1, which also lists the Python names in pickles;\n"
         "--html FILE writes it as a page.",
     .examples = "  shardctl verify checkpoint/\n"
                 "  shardctl verify checkpoint/ --ranks-expected 8 --json | jq '.findings[].kind'\n"
                 "  shardctl verify copy.pt --against original.pt.manifest.json\n",
     .success = "good; there may be warnings",
     .no_answer = "damaged: there are findings",
     .uses = kVerifies,
     .add_options = add_verify,
     .run = run_verify},
    {.name = "diff",
     .usage = "diff A B [options]",
     .summary = "compare two checkpoints by content",
     .details =
         "A and B may have any formats and layouts. They are equal if names, dtypes, shapes, values and objects\n"
         "are. Values are compared as numbers: 0 equals -0, and NaN equals nothing unless --equal-nan is given.\n"
         "With several tolerances an element is equal if any of them accepts it. max_abs, max_rel and max_ulp\n"
         "are taken over the elements that differ. Options that select and rename change A and B alike; those that\n"
         "end in -a or -b change one side. --html FILE writes a page with histograms of the differences.",
     .examples = "  shardctl diff model.safetensors ckpt\n"
                 "  shardctl diff before.pt after.pt --rtol 1e-5 --atol 1e-8\n"
                 "  shardctl diff trainer.pt model.safetensors --strip-prefix-a model.\n"
                 "  shardctl diff a b --json | jq -r '.values[].name'\n",
     .success = "equal",
     .no_answer = "differs",
     .uses = kShows,
     .add_options = add_diff,
     .check = check_diff,
     .run = run_diff},
    {.name = "digest",
     .usage = "digest SRC... [options]",
     .summary = "print one hash per tensor and one per checkpoint",
     .details = "The hashes do not depend on layout and format. Prints one line for each tensor (digest, two spaces,\n"
                "name), then the word checkpoint and the digest of all tensors. Objects are not included.",
     .examples = "  shardctl digest ckpt\n"
                 "  shardctl digest ckpt --algorithm sha256\n"
                 "  shardctl digest ckpt | tail -n 1\n",
     .success = kDone,
     .uses = kReads,
     .add_options = add_digest,
     .run = run_digest},
    {.name = "cat",
     .usage = "cat SRC... NAME[slice] [options]",
     .summary = "print a tensor, a slice of it, or an object",
     .details =
         "Reads only the bytes of the slice. Slices follow Python's rules, without steps: NAME[0:8,:], NAME[-1],\n"
         "NAME[...,0]. Text has one line for each row (of a vector: each element), with all digits; --format npy\n"
         "can be loaded by numpy; --format raw is the packed little-endian elements. --json prints one document\n"
         "shardctl.cat/1 with all elements in one list.",
     .examples = "  shardctl cat checkpoint/ layers.0.mlp.weight\n"
                 "  shardctl cat checkpoint/ 'layers.0.mlp.weight[0:8,:]' --format npy > rows.npy\n"
                 "  shardctl cat model.safetensors 'embed.weight[-1]' --cast '**=float32' --format raw | sha256sum\n"
                 "  shardctl cat train.pt optimizer.param_groups.0.lr\n",
     .success = kDone,
     .uses = kReads,
     .add_options = add_cat,
     .check = check_cat,
     .run = run_cat},
    {.name = "map",
     .usage = "map list | map show NAME | map check NAME SRC... [options]",
     .summary = "list and print model maps; check one against a checkpoint",
     .details =
         "A model map says how a framework stores a model family's tensors: under which names, fused, stacked,\n"
         "permuted, padded. It is a document shardctl.layout/1; NAME is a built-in one or a file. check prints the\n"
         "tensors of SRC that no rule matches, and what keeps the map from being undone; it reads metadata only.",
     .examples = "  shardctl map list\n"
                 "  shardctl map show hf-v5 > my-map.json\n"
                 "  shardctl map check hf-v5 checkpoint/ --hf-ref model/\n",
     .success = "done; check: the map fits",
     .no_answer = "check: tensors are unmatched",
     .uses = {.sources = true, .numbers = true},
     .check = check_map,
     .run = run_map,
     .words = map_words},
    {.name = "env",
     .usage = "env [options]",
     .summary = "show launcher, ranks, CPUs, plug-ins and library versions",
     .examples = "  shardctl env --json\n",
     .success = kDone,
     .uses = {.rank_options = true},
     .run = run_env},
    {.name = "completion",
     .usage = "completion SHELL",
     .summary = "print a script that lets bash, zsh or fish complete the command line",
     .details = "The script completes verbs, options, the words that options take, and files; let the shell source it.",
     .examples = "  source <(shardctl completion bash)\n"
                 "  shardctl completion bash > ~/.local/share/bash-completion/completions/shardctl\n"
                 "  shardctl completion zsh > ~/.zfunc/_shardctl        # a folder of fpath\n"
                 "  shardctl completion fish > ~/.config/fish/completions/shardctl.fish\n",
     .success = kDone,
     .add_options = add_completion,
     .check = check_completion,
     .run = run_completion,
     .words = shell_names},
    {.name = "help",
     .usage = "help [VERB]",
     .summary = "show help for a verb",
     .examples = "  shardctl help split\n",
     .success = kDone,
     .run = run_help,
     .words = verb_names},
    {.name = "version",
     .usage = "version [options]",
     .summary = "show the version of shardctl and of its libraries",
     .examples = "  shardctl version\n",
     .success = kDone,
     .run = run_version},
}};

}  // namespace

std::span<const Verb> verbs() { return kVerbs; }

const Verb* find_verb(std::string_view name) {
  const auto* verb = std::ranges::find(kVerbs, name, &Verb::name);
  return verb == kVerbs.end() ? nullptr : verb;
}

std::vector<std::string_view> verb_names() {
  std::vector<std::string_view> names;
  for (const Verb& verb : verbs()) names.push_back(verb.name);
  return names;
}

}  // namespace shard::app
