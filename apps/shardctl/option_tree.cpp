#include "apps/shardctl/option_tree.h"

#include <fmt/format.h>

#include "libshard/ranks/launch.h"

namespace shard::app {
namespace {

/// Adds options to one group of a help text.
struct Group {
  CLI::App& app;
  const char* name;

  template <class T>
  CLI::Option* single(const char* names, T& value, const char* type, const char* text) {
    return app.add_option(names, value, text)->option_text(type)->take_last()->group(name);
  }
  CLI::Option* many(const char* names, std::vector<std::string>& value, const char* type, const char* text) {
    return app.add_option(names, value, text)->option_text(type)->allow_extra_args(false)->take_all()->group(name);
  }
  template <class T>
  CLI::Option* flag(const char* names, T& value, const char* text) {
    return app.add_flag(names, value, text)->option_text(" ")->group(name);
  }
  /// A word that is looked at when it is parsed.
  CLI::Option* word(const char* names, std::function<void(const std::string&)> take, const char* text) {
    return app.add_option_function<std::string>(names, std::move(take), text)
        ->option_text("WORD")
        ->take_last()
        ->group(name);
  }
};

void add_sources(CLI::App& app, Options& o) {
  app.add_option("SRC", o.sources, "a file, a folder, or several files of one checkpoint");
  Group group{app, "Source"};
  group.single("--from", o.from, "FORMAT", "what the source is; by default its content decides");
  group.single("--ranks-expected", o.ranks_expected, "N", "refuse a checkpoint that N ranks did not write");
  const auto take = [&o](const std::string& word) { o.opaque_globals = word == "opaque"; };
  group
      .word("--unknown-globals", take, "Python classes that are not known: refuse (default), or show as opaque objects")
      ->check(CLI::IsMember({"refuse", "opaque"}));
}

/// Where --layout does not say the target's.
void add_source_layout(CLI::App& app, Options& o) {
  Group{app, "Source"}.single("--layout", o.source_layout, "FILE",
                              "how the source is cut, where its files do not say it: shardctl.layout/1");
}

void add_selection(CLI::App& app, Options& o) {
  Group group{app, "Selection and names"};
  group.many("--include", o.selection.include, "GLOB",
             "only these tensors and objects (* stays inside one dotted part, ** crosses)");
  group.many("--exclude", o.selection.exclude, "GLOB", "not these");
  group.many("--strip-prefix", o.selection.strip_prefix, "P", "names lose this prefix");
  group.many("--add-prefix", o.selection.add_prefix, "P", "names get this prefix");
  group.many("--rename", o.selection.rename, "RE=NEW", "regular expression (RE2) and replacement (\\1), all matches");
  group.many("--cast", o.selection.cast, "GLOB=DTYPE", "convert tensors of these resulting names");
  const auto keep = [&o](const std::string& word) { o.selection.keep_objects = word == "keep"; };
  group.word("--objects", keep, "values that are no tensors: keep (default) or drop")
      ->check(CLI::IsMember({"keep", "drop"}));
}

/// Accepted because scripts may say the default aloud; what else they could say is not here yet.
void add_defaults_only(CLI::App& app, const char* name, const char* only, std::vector<std::string> later) {
  const auto take = [name, only, later](const std::string& word) {
    if (contains(later, word)) throw absent(fmt::format("{} {}", name, word));
    if (word != only) throw usage(fmt::format("{}: '{}' is not known", name, word)).expected(only).found(word);
  };
  Group{app, ""}.word(name, take, "");
}

void add_file_cuts(CLI::App& app, Options& o) {
  Group group{app, "Target layout"};
  group.single("--shards", o.layout.shards, "N", "whole tensors in N files, balanced by bytes");
  group.single("--max-shard-size", o.layout.max_shard_size, "SIZE",
               "whole tensors, up to SIZE a file (5GB = 5*10^9, 5GiB binary; folders: 5GB by default)");
}

void add_tensor_cuts(CLI::App& app, Options& o) {
  Group group{app, "Target layout"};
  group.single("--ranks", o.layout.ranks, "N", "cut every tensor into N pieces, as torch.chunk");
  group.single("--dim", o.layout.dim, "D", "with --ranks: along this dimension (default 0; negative from the end)");
  group.single("--mesh", o.layout.mesh, "A=N[,B=M]", "device mesh, slowest axis first");
  group.many("--place", o.layout.place, "GLOB=P[,P]",
             "with --mesh: placements R, S(d), _S(d,f) of these names, one an axis; first match wins, default R");
  group.single("--layout", o.layout.layout, "FILE", "a layout document shardctl.layout/1");
  group.single("--like", o.layout.like, "CKPT", "the layout that another checkpoint has");
  const auto as = [&o](const std::string& word) {
    o.rank_files = word == "dtensor" ? RankFiles::kDTensor
                   : word == "plain" ? RankFiles::kPlain
                                     : RankFiles::kShardedTensor;
  };
  group
      .word("--as", as,
            "what torch-ranks files hold: sharded_tensor, dtensor or plain (default: as the source, else\n"
            "dtensor with --mesh, else sharded_tensor)")
      ->check(CLI::IsMember({"sharded_tensor", "dtensor", "plain"}));
}

void add_output(CLI::App& app, Options& o) {
  Group group{app, "Output"};
  group.single("-o,--output", o.output, "DST", "what to write; with a suffix (.safetensors .pt .pth .bin) one file");
  group.single("--to", o.to, "FORMAT", "the format to write");
  group.flag("-n,--dry-run", o.dry_run, "print the plan with its numbers; write nothing");
  group.flag("-f,--force", o.force, "replace an existing DST as a whole");
  group.flag("--no-fsync", o.no_fsync, "do not wait until the disk has it");
}

void add_diff(CLI::App& app, Options& o) {
  Group group{app, "Comparison"};
  group.single("--atol", o.atol, "X", "equal if |a-b| <= atol + rtol*|b|");
  group.single("--rtol", o.rtol, "X", "see --atol");
  group.single("--ulp", o.ulp, "N", "equal if at most N representable numbers apart");
  group.flag("--equal-nan", o.equal_nan, "NaN equals NaN");
  group.single("--max-diffs", o.max_diffs, "N", "list at most N differences of each kind");
}

void add_digest(CLI::App& app, Options& o) {
  Group{app, "Digest"}
      .single("--algorithm", o.algorithm, "NAME", "xxh3_128 (default) or sha256")
      ->check(CLI::IsMember({"xxh3_128", "sha256"}));
}

void add_cat(CLI::App& app, Options& o) {
  Group{app, "Output"}
      .single("--format", o.cat_format, "WORD", "text (default), raw (packed little-endian elements) or npy")
      ->check(CLI::IsMember({"text", "raw", "npy"}));
}

}  // namespace

namespace {

/// Libraries below count milliseconds in an int.
std::string check_seconds(const std::string& text) {
  double seconds = 0;
  const bool is_number = CLI::detail::lexical_cast(text, seconds);
  if (is_number && seconds >= 0.001 && seconds <= 1e6) return {};
  return text + " is not from 0.001 to 1000000 seconds";
}

void add_ranks(CLI::App& app, Options& o) {
  Group group{app, "Ranks"};
  group.single("--launcher", o.ranks.launcher, "NAME", "whose variables count: auto (default), none, torchrun, ompi, pmi, slurm")
      ->check(CLI::IsMember({"auto", "none", "torchrun", "ompi", "pmi", "slurm"}));
  group.single("--rank", o.ranks.rank, "R", "this process's rank, without a launcher")
      ->check(CLI::Range(0, kMaxWorld - 1));
  group.single("--world-size", o.ranks.world_size, "N", "the number of ranks, without a launcher")
      ->check(CLI::Range(1, kMaxWorld));
  group.single("--rdzv", o.ranks.rdzv, "HOST:PORT", "where rank 0 can be found");
  group.single("--timeout", o.ranks.timeout, "SECONDS", "how long a rank may be silent (default 300)")
      ->check(check_seconds);
  group.single("--backend", o.ranks.backend, "NAME", "what moves bytes between ranks: auto (default), gloo, nccl, mpi")
      ->check(CLI::IsMember({"auto", "gloo", "nccl", "mpi"}));
  add_defaults_only(app, "--device", "cpu", {"cuda"});
  group.single("--local-ranks", o.ranks.local_ranks, "N", "run as N ranks that are threads of this process")
      ->check(CLI::Range(1, 1024));
}

}  // namespace

void add_global_options(CLI::App& app, Options& o) {
  Group group{app, "Global options"};
  group.flag("--json", o.json, "one JSON document on stdout; errors too");
  group.single("-j,--threads", o.threads, "N", "workers (default: CPUs that may be used)")->check(CLI::Range(0, 4096));
  group.single("--max-memory", o.max_memory, "SIZE", "buffers of all workers together (default 64MiB)");
  group.single("--progress", o.progress, "WHEN", "auto, always, never or json")
      ->check(CLI::IsMember({"auto", "always", "never", "json"}));
  group.single("--color", o.color, "WHEN", "auto, always or never")->check(CLI::IsMember({"auto", "always", "never"}));
  group.flag("-q,--quiet", o.quiet, "only data and errors");
  group.flag("-v,--verbose", o.verbose, "say what is done; -vv with numbers");
  group.single("--log-file", o.log_file, "FILE", "append the log to a file");
  group.single("--config", o.config, "FILE", "options from a TOML or INI file");
  group.flag("-h,--help", o.help, "show this help");
  group.flag("--version", o.version, "show the version in one line");
}

bool writes(std::string_view verb) {
  return verb == "split" || verb == "gather" || verb == "reshard" || verb == "convert";
}

bool has_target_layout(std::string_view verb) { return verb == "split" || verb == "reshard" || verb == "convert"; }

void add_options(CLI::App& app, std::string_view verb, Options& o) {
  const bool all = verb.empty(), copies = all || writes(verb);
  const bool reads = copies || verb == "inspect" || verb == "diff" || verb == "digest" || verb == "cat";
  app.set_help_flag();
  if (reads) add_sources(app, o);
  if (reads && !all && !has_target_layout(verb)) add_source_layout(app, o);
  if (copies) {
    add_output(app, o);
    if (has_target_layout(verb) || all) add_tensor_cuts(app, o);
    add_file_cuts(app, o);
    add_defaults_only(app, "--checksum", "none", {"xxh3", "sha256"});
  }
  if (all || verb == "diff") add_diff(app, o);
  if (all || verb == "digest") add_digest(app, o);
  if (all || verb == "cat") add_cat(app, o);
  if (verb == "completion") app.add_option("SHELL", o.shell, "bash, zsh or fish");
  if (reads) add_selection(app, o);
  if (reads || verb == "env") add_ranks(app, o);
  add_global_options(app, o);
}

std::vector<std::string> long_names(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::Option* option : app.get_options()) {
    if (option->get_group().empty()) continue;
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
  }
  return names;
}

std::vector<std::string> all_long_names() {
  CLI::App everything;
  Options ignored;
  add_options(everything, "", ignored);
  return long_names(everything);
}

std::string lower_first(std::string text) {
  const bool word = text.size() > 1 && text[0] >= 'A' && text[0] <= 'Z' && text[1] >= 'a' && text[1] <= 'z';
  if (word) text[0] = static_cast<char>(text[0] - 'A' + 'a');
  return text;
}

Error usage(const std::string& message) { return Error(ErrorCode::kInvalidArgument, message); }

Error absent(std::string_view what) {
  return Error(ErrorCode::kUnsupported, fmt::format("{} is not part of this build", what))
      .hint("'shardctl --help' lists what is");
}

}  // namespace shard::app
