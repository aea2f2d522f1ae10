#include "apps/shardctl/verbs/verbs.h"

#include <algorithm>
#include <array>

#include "apps/shardctl/arguments/completion.h"
#include "apps/shardctl/arguments/option_tree.h"

namespace shard::app {
namespace {

constexpr Uses with_use(Uses uses, bool Uses::*added) {
  uses.*added = true;
  return uses;
}

constexpr Uses kReads{
    .sources = true, .selection = true, .numbers = true, .maps = true, .rank_options = true, .ranks = true};
constexpr Uses kShows = with_use(kReads, &Uses::page);
constexpr Uses kCompares = with_use(kShows, &Uses::compares);
constexpr Uses kGathers = with_use(kReads, &Uses::target);
constexpr Uses kCuts = with_use(kGathers, &Uses::target_layout);
constexpr Uses kAverages = with_use(kCuts, &Uses::averages);
constexpr Uses kVerifies{
    .sources = true, .choice = true, .page = true, .computes = true, .rank_options = true, .ranks = true};

const std::array<Verb, 17> kVerbs{{
    {.name = "inspect",
     .usage = "inspect SRC... [options]",
     .summary = "show what a checkpoint contains (reads metadata only)",
     .details = "Prints a summary (format, elements, size per dtype, ranks), then one line per tensor (name, dtype, "
                "shape, size, sharding, file) and one per object. -v adds a line per stored chunk. On a terminal, "
                "identical layers share one line that shows the range of layer numbers and the count; --all lists "
                "every layer. S(0) means sharded along dimension 0 (with torch.chunk's sizes) and R means replicated, "
                "as in DTensor. --json prints a shardctl.inspect/1 document, which adds each chunk's file offset; "
                "--html FILE writes a page that draws how each tensor is sharded.",
     .examples = "  shardctl inspect model.safetensors\n"
                 "  shardctl inspect checkpoint/ --include '**.q_proj.weight'\n"
                 "  shardctl inspect checkpoint/ --json | jq '.tensors[].name'\n"
                 "  shardctl inspect checkpoint/ --html checkpoint.html\n",
     .uses = kShows,
     .add_options = add_inspect,
     .run = run_inspect},
    {.name = "split",
     .usage = "split SRC... -o DST [options]",
     .summary = "shard a checkpoint for N ranks, or split it into N files",
     .details = "--ranks, --mesh, --layout and --like shard every tensor (default format: dcp). --shards and "
                "--max-shard-size, or no layout option, keep tensors whole and distribute them over several files "
                "(default format: safetensors; default size: 5GB per file).",
     .examples =
         "  shardctl split model.safetensors -o ckpt --ranks 8\n"
         "  shardctl split model.safetensors -o ckpt --mesh dp=2,tp=4 --place '**.q_proj.weight=R,S(0)'\n"
         "  shardctl split model.pt -o ranks --mesh tp=4 --place '**.weight=S(0)' --to torch-ranks --as dtensor\n"
         "  shardctl split model.safetensors -o folder --max-shard-size 2GB\n",
     .uses = kCuts,
     .target = {.format = "safetensors", .format_of_pieces = "dcp", .rewrites = true},
     .run = run_copy},
    {.name = "gather",
     .usage = "gather SRC... -o DST [options]",
     .summary = "assemble whole tensors",
     .details = "Writes whole tensors: a file if DST ends in .safetensors, .pt, .pth, .bin, .ckpt or .h5, "
                "otherwise a folder (safetensors unless --to names a different format, files of at most 5GB).",
     .examples = "  shardctl gather ckpt -o model.safetensors --objects drop\n"
                 "  shardctl gather ckpt -o model.pt\n"
                 "  shardctl gather ckpt -o hf-folder --max-shard-size 5GB --strip-prefix model.\n",
     .uses = kGathers,
     .target = {.format = "safetensors"},
     .run = run_copy},
    {.name = "reshard",
     .usage = "reshard SRC... -o DST (--ranks N | --mesh ... | --shards N | ...) [options]",
     .summary = "change a checkpoint's layout in one pass",
     .details = "Copies bytes directly from source chunks to target chunks; never builds whole tensors. "
                "Keeps the source format unless --to is given.",
     .examples = "  shardctl reshard ckpt -o ckpt-for-6 --ranks 6\n"
                 "  shardctl reshard ckpt -o ckpt-tp --mesh tp=4 --place '**.o_proj.weight=S(1)' --place '**=S(0)'\n"
                 "  shardctl reshard ckpt -o ckpt-like --like other-ckpt\n",
     .uses = kCuts,
     .target = {.keeps_format = true, .needs_layout = true, .rewrites = true},
     .run = run_copy},
    {.name = "convert",
     .usage = "convert SRC... -o DST [--to FORMAT] [options]",
     .summary = "write a checkpoint in another format",
     .details = "Keeps the sharding if the target format supports it; safetensors and torch files get whole tensors.",
     .examples = "  shardctl convert model.pt -o model.safetensors --objects drop\n"
                 "  shardctl convert model.safetensors -o ckpt --to dcp\n"
                 "  shardctl convert model.safetensors -o half.safetensors --cast '**=bfloat16'\n",
     .uses = kCuts,
     .target = {.keeps_layout = true, .rewrites = true},
     .run = run_copy},
    {.name = "export",
     .usage = "export SRC... -o DST [options]",
     .summary = "write a model folder that transformers, vLLM and llama.cpp's converter can load",
     .details = "Finds the model in a trainer's output (checkpoint-N, global_step_N, step-N, or the run's folder) and "
                "reports which checkpoint it used. Keeps only the model's tensors and strips wrapper prefixes from "
                "their names (module., _orig_mod., _fsdp_wrapped_module., _checkpoint_wrapped_module., "
                "_forward_module., a doubled model.). Stores a tied output head once. Copies config, tokenizer, chat "
                "templates and *.py files from --hf-ref, or else from the nearest folder with a config.json (SRC, its "
                "huggingface/, or its parent). If that folder has weights, names and shapes must match them. "
                "--dry-run prints what was found, what would be renamed and which files would be written.",
     .examples = "  shardctl export checkpoint-500 -o model\n"
                 "  shardctl export global_step_100/actor -o model --dtype bfloat16\n"
                 "  shardctl export checkpoint/step-1000 -o model --hf-ref ~/models/Qwen3-8B\n",
     .uses = kGathers,
     .sources_as_named = true,
     .target = {.format = "safetensors", .always_folder = true},
     .add_options = add_export,
     .check = check_export,
     .run = run_export},
    {.name = "average",
     .usage = "average SRC... -o DST [options]",
     .summary = "average checkpoints of one model",
     .details =
         "Each SRC is a checkpoint, in any format and layout. They must have the same names and shapes. Floating-point "
         "tensors are summed in float32 in the order of the command line, and rounded once to the first SRC's "
         "dtype. Integers and booleans must be equal. Weights are used as given, with a warning if they do "
         "not add up to 1. With --ema BETA, n sources have the weights BETA^(n-1), (1-BETA)*BETA^(n-2), ..., "
         "1-BETA. Layout, objects and metadata are those of the first SRC. States of the optimizer "
         "and of other parts of the trainer are skipped, unless --optimizer is given.",
     .examples = "  shardctl average step-900 step-950 step-1000 -o averaged\n"
                 "  shardctl average a.safetensors b.safetensors -o soup.safetensors --weights 0.7,0.3\n"
                 "  shardctl average step-{100..900..100} -o ema --ema 0.9 --dtype float32\n",
     .uses = kAverages,
     .each_source = true,
     .target = {.keeps_format = true, .keeps_layout = true},
     .add_options = add_average,
     .check = check_average,
     .run = run_average},
    {.name = "repair",
     .usage = "repair SRC... -o DST [options]",
     .summary = "recover the intact tensors of a damaged checkpoint",
     .details =
         "Reads all of SRC, verifies every checksum, and writes the intact tensors and objects to a new "
         "checkpoint in the same format and layout. Never writes to SRC. Rebuilds missing or damaged indexes, "
         "zip directories and .metadata, and replaces a damaged replica with one from another rank. Never "
         "guesses or fills in values, so lost tensors are not in DST. They are listed on stderr and in --json, and "
         "recorded in DST's metadata (shardctl.lost). "
         "Items of dcp have no names. If .metadata is lost, pass another checkpoint of the same job with --like. "
         "Runs in one process, on all its cores; a job of several ranks is refused. "
         "With --uploads, lists the uploads that killed runs left in an object store, and removes them with "
         "--force. "
         "Exits with 0 when DST is on disk, even if something was lost, and with 4 if nothing can be recovered.",
     .examples = "  shardctl repair cut.safetensors -o repaired.safetensors\n"
                 "  shardctl repair step-1000 -o step-1000-repaired --like step-900\n"
                 "  shardctl repair model.pt -o repaired.pt --json | jq -r '.lost[].name'\n"
                 "  shardctl repair s3://BUCKET/step-1000 --uploads\n",
     .uses = {.sources = true, .selection = true, .target = true, .computes = true},
     .sources_as_named = true,
     .target = {.keeps_format = true, .keeps_layout = true},
     .add_options = add_repair,
     .run = run_repair},
    {.name = "verify",
     .usage = "verify SRC... [options]",
     .summary = "check every byte of a checkpoint and report all problems",
     .details =
         "Reads every byte once and checks headers, directories, indexes, the CRC-32 of every zip record, tensor "
         "coverage, equality of replicas, rank information, and missing or extra files. If there is a manifest "
         "(shardctl.manifest.json in the folder, DST.manifest.json next to a file, or --against), compares every 4 MiB "
         "block with it. Prints one line per finding, worst first, then a verdict. Warnings do not affect the exit "
         "code. Content that shardctl does not read (classes outside its list) is counted and named, not called "
         "damaged, and other entries of the folder are named as not checked. "
         "--dequantize also computes every quantized weight. --against a quantized checkpoint packs the plain weights "
         "of SRC again by its schemes, and reports the share of codes and scales that come back. "
         "--include and --exclude skip findings about the content of other tensors and objects (checksums, "
         "replicas, gaps); every byte is still read, and findings about files and headers stay. "
         "--json prints one document shardctl.verify/1, which also lists the Python names in pickles; "
         "--html FILE writes it as a page.",
     .examples = "  shardctl verify checkpoint/\n"
                 "  shardctl verify checkpoint/ --ranks-expected 8 --json | jq '.findings[].kind'\n"
                 "  shardctl verify copy.pt --against original.pt.manifest.json\n"
                 "  shardctl verify plain/ --against DeepSeek-V3/\n",
     .success = "good (possibly with warnings)",
     .no_answer = "damaged (at least one error found)",
     .uses = kVerifies,
     .add_options = add_verify,
     .run = run_verify},
    {.name = "diff",
     .usage = "diff A B [options]",
     .summary = "compare two checkpoints by content",
     .details =
         "A and B can be in any format and layout. They are equal if their names, dtypes, shapes, values and objects "
         "are equal. Values are compared as numbers: 0 equals -0, and NaN equals nothing unless --equal-nan is given. "
         "With several tolerances, elements are equal if any tolerance accepts them. max_abs, max_rel and max_ulp "
         "cover only the differing elements. Options that select and rename change A and B alike; those that "
         "end in -a or -b change one side. --html FILE writes a page with histograms of the differences.",
     .examples = "  shardctl diff model.safetensors ckpt\n"
                 "  shardctl diff before.pt after.pt --rtol 1e-5 --atol 1e-8\n"
                 "  shardctl diff trainer.pt model.safetensors --strip-prefix-a model.\n"
                 "  shardctl diff a b --json | jq -r '.values[].name'\n",
     .success = "equal",
     .no_answer = "differs",
     .uses = kCompares,
     .each_source = true,
     .add_options = add_diff,
     .check = check_diff,
     .run = run_diff},
    {.name = "digest",
     .usage = "digest SRC... [options]",
     .summary = "print a hash of each tensor and of the whole checkpoint",
     .details = "The hashes are independent of format and layout. Prints one line for each tensor (digest, two spaces, "
                "name), then the word checkpoint and the digest of all tensors. Objects are not included.",
     .examples = "  shardctl digest ckpt\n"
                 "  shardctl digest ckpt --algorithm sha256\n"
                 "  shardctl digest ckpt | tail -n 1\n",
     .uses = kReads,
     .add_options = add_digest,
     .run = run_digest},
    {.name = "cat",
     .usage = "cat SRC... NAME[slice] [options]",
     .summary = "print a tensor, a slice of it, or an object",
     .details =
         "Reads only the bytes of the slice. Slices work as in Python, but without steps: NAME[0:8,:], NAME[-1], "
         "NAME[...,0]. Text output has one line per row (per element for a vector) at full precision; --format npy is "
         "a NumPy file; --format raw is packed little-endian elements. --json prints one document "
         "shardctl.cat/1 with all elements in one list.",
     .examples = "  shardctl cat checkpoint/ layers.0.mlp.weight\n"
                 "  shardctl cat checkpoint/ 'layers.0.mlp.weight[0:8,:]' --format npy > rows.npy\n"
                 "  shardctl cat model.safetensors 'embed.weight[-1]' --cast '**=float32' --format raw | sha256sum\n"
                 "  shardctl cat train.pt optimizer.param_groups.0.lr\n",
     .uses = kReads,
     .add_options = add_cat,
     .check = check_cat,
     .run = run_cat},
    {.name = "map",
     .usage = "map list | map show NAME | map check NAME SRC... [options]",
     .summary = "list or print model maps, or check one against a checkpoint",
     .details = "A model map describes how a framework stores a model family: tensor names, and which tensors are "
                "fused, stacked, permuted or padded. Maps are shardctl.layout/1 documents; NAME is a built-in map or a "
                "file. check reads metadata only and prints the tensors of SRC that no rule matches and anything else "
                "that prevents undoing the map. With --include and --exclude, names that are not selected need no "
                "rule.",
     .examples = "  shardctl map list\n"
                 "  shardctl map show hf-v5 > my-map.json\n"
                 "  shardctl map check hf-v5 checkpoint/ --hf-ref model/\n",
     .success = "done; check: the map fits",
     .no_answer = "check: tensors are unmatched",
     .uses = {.sources = true, .choice = true, .numbers = true},
     .check = check_map,
     .run = run_map,
     .words = map_words},
    {.name = "env",
     .usage = "env [options]",
     .summary = "show launcher, ranks, CPUs, plug-ins and library versions",
     .examples = "  shardctl env --json\n",
     .uses = {.rank_options = true},
     .run = run_env},
    {.name = "completion",
     .usage = "completion SHELL",
     .summary = "print a completion script for bash, zsh or fish",
     .details = "The script completes verbs, options, option values and file names. Source it from your shell.",
     .examples = "  source <(shardctl completion bash)\n"
                 "  shardctl completion bash > ~/.local/share/bash-completion/completions/shardctl\n"
                 "  shardctl completion zsh > ~/.zfunc/_shardctl        # a folder of fpath\n"
                 "  shardctl completion fish > ~/.config/fish/completions/shardctl.fish\n",
     .add_options = add_completion,
     .check = check_completion,
     .run = run_completion,
     .words = shell_names},
    {.name = "help",
     .usage = "help [VERB] [--all]",
     .summary = "show help for a verb",
     .examples = "  shardctl help split\n",
     .add_options = add_help,
     .run = run_help,
     .words = verb_names},
    {.name = "version",
     .usage = "version [options]",
     .summary = "show the version of shardctl and of its libraries",
     .examples = "  shardctl version\n",
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
