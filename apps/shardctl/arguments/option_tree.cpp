#include "apps/shardctl/arguments/option_tree.h"

#include <fmt/format.h>

#include <array>
#include <charconv>
#include <optional>
#include <type_traits>

#include "apps/shardctl/session/device.h"
#include "formats/registry.h"
#include "libshard/core/contains.h"
#include "libshard/core/parse_number.h"
#include "libshard/ranks/launch.h"

namespace shard::app {
namespace {

template <class T>
struct Unwrapped {
  using type = T;
};
template <class T>
struct Unwrapped<std::optional<T>> {
  using type = T;
};

/// Parses an integer. CLI11 would read 010 as 8 and clamp values beyond 64 bits to the largest number.
template <class T>
std::string make_decimal(std::string& text) {
  T number = 0;
  const char* const end = text.data() + text.size();
  const auto [stopped, failure] = std::from_chars(text.data() + (text.starts_with('+') ? 1 : 0), end, number);
  if (failure == std::errc::result_out_of_range) return text + " is out of range";
  if (failure != std::errc() || stopped != end) return text + " is not a whole number";
  text = std::to_string(number);
  return {};
}

/// Parses a floating-point number. CLI11 would read 0x10 as 16 and skip spaces.
std::string make_number(std::string& text) {
  if (text.starts_with('+')) text.erase(0, 1);
  return parse_number<double>(text) ? std::string() : text + " is not a number";
}

/// Adds options to one group of the help text.
struct OptionGroup {
  CLI::App& app;
  const char* name;

  template <class T>
  CLI::Option* single(const char* names, T& value, const char* type, const char* text) {
    CLI::Option* const option = app.add_option(names, value, text)->option_text(type)->take_last()->group(name);
    using Number = typename Unwrapped<T>::type;
    if constexpr (std::is_integral_v<Number>) option->transform(CLI::Validator(make_decimal<Number>, ""));
    if constexpr (std::is_floating_point_v<Number>) option->transform(CLI::Validator(make_number, ""));
    return option;
  }
  CLI::Option* many(const char* names, std::vector<std::string>& value, const char* type, const char* text) {
    return app.add_option(names, value, text)->option_text(type)->allow_extra_args(false)->take_all()->group(name);
  }
  template <class T>
  CLI::Option* flag(const char* names, T& value, const char* text) {
    return app.add_flag(names, value, text)->option_text(" ")->group(name);
  }
  /// An option whose value is parsed by its own function, which also checks it.
  CLI::Option* word(const char* names, std::function<void(const std::string&)> take, const char* text) {
    return app.add_option_function<std::string>(names, std::move(take), text)
        ->option_text("VALUE")
        ->take_last()
        ->group(name);
  }
  /// Adds the read or write options of all formats, except the one with the name `without`.
  void choices(std::span<const FormatOption> Format::*of, FormatChoices& chosen, std::string_view without = {}) {
    for (const FormatOption& option : format_options(of)) {
      if (option.name == without) continue;
      const auto take = [&chosen, key = std::string(option.name)](const std::string& text) { chosen[key] = text; };
      word(fmt::format("--{}", option.name).c_str(), take, std::string(option.help).c_str())
          ->check(CLI::IsMember(std::vector<std::string>(option.words.begin(), option.words.end())));
    }
  }
};

constexpr const char* kWeights = "--weights";

// Groups whose options concern one process only, except --local-input and --local-output.
constexpr const char* kRankOptions = "Ranks";
constexpr const char* kStoreOptions = "Object stores";
constexpr const char* kGlobalOptions = "Global options";

void add_sources(CLI::App& app, const Uses& uses, Request& o) {
  app.add_option("SRC", o.read.paths,
                 "a file, a folder, several files of one checkpoint, or a URL (s3://, gs://, hf://, https://)");
  OptionGroup group{app, "Source"};
  group.single("--from", o.read.from, "FORMAT", "source format (default: detected from the content)");
  group.single("--ranks-expected", o.read.ranks_expected, "N", "fail unless exactly N ranks wrote the checkpoint");
  const auto take = [&o](const std::string& word) { o.read.opaque_globals = word == "opaque"; };
  group.word("--unknown-globals", take, "unknown Python classes: refuse (default) or opaque (keep only their names)")
      ->check(CLI::IsMember({"refuse", "opaque"}));
  const std::string_view given_way = uses.averages ? std::string_view(kWeights).substr(2) : std::string_view();
  group.choices(&Format::read_options, o.read.choices, given_way);
}

void add_stores(CLI::App& app, StoreOptions& stores) {
  OptionGroup group{app, kStoreOptions};
  group.single("--endpoint-url", stores.endpoint_url, "URL",
               "address of the S3 service (default: AWS_ENDPOINT_URL_S3, AWS_ENDPOINT_URL, or else AWS)");
  group.single("--region", stores.region, "NAME", "region of the bucket (default: from AWS's variables and files)");
  group.flag("--anonymous", stores.anonymous, "send no credentials, for public buckets and models");
  group.single("--connections", stores.connections, "N", "requests to object stores at one time (default: 8)")
      ->check(CLI::Range(1, 256));
}

/// Adds a flag, so that a path after it is not read as its value. A dtype follows '='.
void add_dequantize(CLI::App& app, Request& o) {
  const auto take = [&o](const std::string& word) {
    const bool is_default = word == "true" || word == "1";
    if (word == "false" || word == "0") return;
    o.read.dequantize = is_default ? DType::kBfloat16 : *dtype_of_name(word);
  };
  const auto check = [](const std::string& word) -> std::string {
    const bool is_flag = word == "true" || word == "1" || word == "false" || word == "0";
    const auto dtype = dtype_of_name(word);
    if (is_flag || dtype == DType::kBfloat16 || dtype == DType::kFloat16 || dtype == DType::kFloat32) return {};
    return word + " is not bfloat16, float16 or float32";
  };
  app.add_option_function<std::string>("--dequantize", take,
                                       "compute plain weights from quantized ones, in bfloat16 or =DTYPE (float16, "
                                       "float32)")
      ->option_text("[=DTYPE]")
      ->expected(0)
      ->default_str("true")
      ->check(check)
      ->take_last()
      ->group("Source");
}

void add_lora(CLI::App& app, const Uses& uses, Request& o) {
  OptionGroup{app, "Source"}.many(
      "--lora", o.read.lora, "ADAPTER[=WEIGHT]",
      "merge a LoRA adapter (PEFT's folder, or a checkpoint of one) into the weights of SRC "
      "(diff: of A; average: of each SRC)");
  if (uses.averages) return;  // Quantized weights have no average.
  OptionGroup{app, "Source"}.flag("--requantize", o.read.requantize,
                                  "with --lora on a quantized SRC: pack the changed weights again in its form");
}

void add_source_layout(CLI::App& app, Request& o) {
  OptionGroup{app, "Source"}.single("--layout", o.read.layout, "FILE",
                                    "layout document that describes how the source is sharded");
}

constexpr const char* kSelection = "Selection and names";

void add_choice(CLI::App& app, Request& o) {
  OptionGroup group{app, kSelection};
  group.many("--include", o.select.include, "GLOB",
             "keep only matching tensors and objects (* stops at a dot, ** does not)");
  group.many("--exclude", o.select.exclude, "GLOB", "skip matching tensors and objects");
}

void add_names(CLI::App& app, Request& o) {
  OptionGroup group{app, kSelection};
  group.many("--strip-prefix", o.select.strip_prefix, "P", "remove this prefix from names");
  group.many("--add-prefix", o.select.add_prefix, "P", "add this prefix to names");
  group.many("--rename", o.select.rename, "RE=NEW",
             "replace all matches of a regular expression (RE2) in names; \\1 is a group");
  group.many("--cast", o.select.cast, "GLOB=DTYPE",
             "convert tensors whose final names match to DTYPE; GLOB=keep leaves matching ones as they are");
  const auto keep = [&o](const std::string& word) { o.select.keep_objects = word == "keep"; };
  group.word("--objects", keep, "values that are not tensors: keep (default) or drop")
      ->check(CLI::IsMember({"keep", "drop"}));
}

void add_maps(CLI::App& app, const Uses& uses, Request& o) {
  OptionGroup group{app, "Model maps"};
  if (uses.maps)
    group.single(
        "--map", o.read.map, "NAME",
        "model map of SRC (diff: of A), a built-in name or a file: its tensors are seen as in Hugging Face's models");
  if (uses.takes_second_map()) {
    group.single("--to-map", o.write.map, "NAME",
                 "model map of the output: stores the tensors as its framework does (diff: model map of B)");
  }
  group.many("--set", o.read.numbers.set, "NAME=VALUE", "value of a map variable that the checkpoint does not record");
  group.single(
      "--hf-ref", o.read.numbers.hf_ref, "DIR",
      "folder with the model's config.json, for a map\'s numbers; export also copies the tokenizer from it, and "
      "expects names and shapes of the weights there (default: the nearest such folder beside SRC)");
}

constexpr const char* kTargetLayout = "Target layout";

void add_file_cuts(CLI::App& app, LayoutRequest& layout) {
  OptionGroup group{app, kTargetLayout};
  group.single("--shards", layout.shards, "N", "distribute whole tensors over N files, balanced by bytes");
  group.single("--max-shard-size", layout.max_shard_size, "SIZE",
               "distribute whole tensors over files of at most SIZE (5GB is 5*10^9 bytes, 5GiB is binary; default for "
               "folders: 5GB)");
}

void add_tensor_cuts(CLI::App& app, Request& o) {
  OptionGroup group{app, kTargetLayout};
  LayoutRequest& layout = o.write.layout;
  group.single("--ranks", layout.ranks, "N", "shard every tensor over N ranks, as torch.chunk does");
  group.single("--dim", layout.dim, "D", "with --ranks: dimension to shard (default: 0; negative counts from the end)");
  group.single("--mesh", layout.mesh, "A=N[,B=M]", "device mesh, slowest axis first");
  group.many(
      "--place", layout.place, "GLOB=P[,P]",
      "with --mesh: placement of matching tensors, one of R, S(d), _S(d,f) per axis; first match wins (default: R)");
  group.single("--layout", layout.layout, "FILE", "layout document shardctl.layout/1");
  group.single("--like", layout.like, "CKPT", "use the layout of this checkpoint");
  const auto as = [&o](const std::string& word) {
    o.write.rank_files = word == "dtensor" ? RankFiles::kDTensor
                         : word == "plain" ? RankFiles::kPlain
                                           : RankFiles::kShardedTensor;
  };
  group
      .word("--as", as,
            "torch-ranks: store shards as sharded_tensor, dtensor or plain (default: same as in the source, or else "
            "dtensor with --mesh and sharded_tensor without)")
      ->check(CLI::IsMember({"sharded_tensor", "dtensor", "plain"}));
}

/// \param model_folder  the destination is a folder that model loaders read
void add_target(CLI::App& app, bool model_folder, WriteRequest& target) {
  OptionGroup group{app, "Output"};
  group.single("-o,--output", target.path, "DST",
               model_folder ? "destination: a folder"
                            : "destination: a file if it ends in .safetensors, .pt, .pth, .bin, .ckpt or .h5, "
                              "otherwise a folder");
  group.single("--to", target.to, "FORMAT",
               model_folder ? "format to write: safetensors (default) or torch"
                            : "format to write; 'shardctl version' lists the formats");
  if (!model_folder) group.choices(&Format::write_options, target.choices);
  group.flag("-n,--dry-run", target.dry_run, "print what would be done, with sizes; write nothing");
  group.flag("-f,--force", target.force, "replace an existing DST completely");
  group.flag("--resume", target.resume,
             "continue an interrupted run of the same job; its output is read back and checked");
  group.flag("--no-fsync", target.no_fsync, "do not fsync the output");
  group
      .single("--checksum", target.checksum, "VALUE",
              "write a manifest with a hash of every 4 MiB block: none (default), xxh3 or sha256")
      ->check(CLI::IsMember({"none", "xxh3", "sha256"}));
  group.flag("--if-changed", target.if_changed,
             "do nothing if DST's manifest shows it is up to date with this source and these options (implies "
             "--checksum xxh3)");
}

/// Checks --timeout. The libraries that receive it count milliseconds in an int.
std::string check_seconds(const std::string& text) {
  const std::optional<double> seconds = parse_number<double>(text);
  if (seconds && *seconds >= 0.001 && *seconds <= 1e6) return {};
  return text + " is not between 0.001 and 1000000 seconds";
}

/// Adds --device. Verbs that only read accept it and ignore it, so that one setting can serve all verbs.
void add_device(CLI::App& app, const Uses& uses, RunRequest& ranks) {
  OptionGroup{app, uses.target ? kRankOptions : ""}
      .single("--device", ranks.device, "NAME",
              "device that permutes and converts tensors: cpu (default), cuda (the local rank's GPU) or cuda:N")
      ->check(check_device);
}

void add_ranks(CLI::App& app, const Uses& uses, RunRequest& ranks) {
  OptionGroup group{app, kRankOptions};
  group
      .single("--launcher", ranks.launcher, "NAME",
              "launcher to read environment variables of: auto (default), none, torchrun, ompi, pmi or slurm")
      ->check(CLI::IsMember({"auto", "none", "torchrun", "ompi", "pmi", "slurm"}));
  group.single("--rank", ranks.rank, "R", "rank of this process, without a launcher")
      ->check(CLI::Range(0, kMaxWorld - 1));
  group.single("--world-size", ranks.world_size, "N", "number of ranks, without a launcher")
      ->check(CLI::Range(1, kMaxWorld));
  group.single("--rdzv", ranks.rdzv, "HOST:PORT", "address of rank 0");
  group
      .single("--timeout", ranks.timeout, "SECONDS", "fail when a rank has not responded for this long (default: 300)")
      ->check(check_seconds);
  group.single("--backend", ranks.backend, "NAME", "communication backend: auto (default), gloo, nccl, mpi")
      ->check(CLI::IsMember({"auto", "gloo", "nccl", "mpi"}));
  add_device(app, uses, ranks);
  group.single("--local-ranks", ranks.local_ranks, "N", "run N ranks as threads in this process")
      ->check(CLI::Range(1, 1024));
  if (uses.sources) {
    group.flag("--local-input", ranks.local_input,
               "each rank reads only its own files of SRC and receives other data from the other ranks");
  }
  if (uses.target) {
    group.flag("--local-output", ranks.local_output, "each rank writes its own files to its own DST");
  }
}

void add_page(CLI::App& app, Request& o) {
  OptionGroup group{app, "Output"};
  group.single("--html", o.page.path, "FILE", "also write the result as one self-contained HTML page")
      ->check([](const std::string& path) { return std::string(path.empty() ? "the name is empty" : ""); });
  if (app.get_option_no_throw("--force") != nullptr) return;  // The target's options include --force.
  group.flag("-f,--force", o.page.force, "replace an existing page");
}

/// Adds the groups that `uses` names, and then the options of each verb in `own`.
void add_groups(CLI::App& app, const Uses& uses, std::span<const Verb> own, CommonOptions& common, Request& o) {
  app.set_help_flag();
  if (uses.sources) add_sources(app, uses, o);
  if (uses.sources && !uses.target_layout) add_source_layout(app, o);
  if (uses.maps || uses.computes) add_dequantize(app, o);
  if (uses.maps || uses.target) add_lora(app, uses, o);
  if (uses.target) {
    add_target(app, own.size() == 1 && own.front().target.always_folder, o.write);
    if (uses.target_layout) add_tensor_cuts(app, o);
    add_file_cuts(app, o.write.layout);
  }
  for (const Verb& verb : own) {
    if (verb.add_options != nullptr) verb.add_options(app, o);
  }
  if (uses.page) add_page(app, o);
  if (uses.choice || uses.selection) add_choice(app, o);
  if (uses.selection) add_names(app, o);
  if (uses.numbers) add_maps(app, uses, o);
  if (uses.rank_options) add_ranks(app, uses, o.run);
  if (uses.sources) add_stores(app, common.stores);
  add_global_options(app, common, o);
}

}  // namespace

void add_inspect(CLI::App& app, Request& o) {
  OptionGroup{app, "Output"}.flag("--all", o.inspect.all, "print one line per tensor; do not fold identical layers");
}

void add_help(CLI::App& app, Request& o) {
  if (app.get_option_no_throw("--all") != nullptr)
    return;  // If the options of all verbs are listed, inspect's --all exists already.
  OptionGroup{app, "Help"}.flag("--all", o.all_options, "describe every option of the verb");
}

void add_repair(CLI::App& app, Request& o) {
  OptionGroup{app, "Output"}.flag("--uploads", o.left_uploads,
                                  "list the unfinished uploads below SRC, a URL; with --force remove them");
  if (app.get_option_no_throw("--like") != nullptr)
    return;  // If the options of all verbs are listed, the target's --like exists already.
  OptionGroup{app, "Source"}.single(
      "--like", o.like, "CKPT",
      "another checkpoint of the same job, used to identify tensors when the metadata is lost");
}

void add_average(CLI::App& app, Request& o) {
  OptionGroup group{app, "Average"};
  group.flag("--optimizer", o.averaging.optimizer,
             "also average states of optimizers and of other parts of the trainer");
  group.single("--ema", o.averaging.ema, "BETA",
               "moving average from the oldest SRC to the newest: each one after the first has the weight 1 - BETA");
  // If the options of all verbs are listed, a format's --weights and export's --dtype exist already.
  if (app.get_option_no_throw(kWeights) == nullptr) {
    group.single(kWeights, o.averaging.weights, "W,...", "one weight per SRC (default: all are equal)");
  }
  if (app.get_option_no_throw("--dtype") == nullptr) {
    group.single("--dtype", o.averaging.dtype, "DTYPE",
                 "bfloat16, float16 or float32 for averaged tensors (default: the first SRC's)");
  }
}

void add_export(CLI::App& app, Request& o) {
  OptionGroup group{app, "Export"};
  group.single("--dtype", o.exporting.dtype, "DTYPE",
               "convert floating-point tensors to this dtype; auto takes it from config.json (default: keep)");
  group.flag("--no-check", o.exporting.no_check, "do not check names and shapes against --hf-ref");
}

void add_verify(CLI::App& app, Request& o) {
  OptionGroup{app, "Comparison"}.single(
      "--against", o.against, "PATH",
      "compare with this manifest instead of the checkpoint's own; or with a quantized checkpoint of which SRC has "
      "the plain weights, and report the share of codes and scales that come back");
}

void add_diff(CLI::App& app, Request& o) {
  OptionGroup group{app, "Comparison"};
  group.single("--atol", o.diff.atol, "X", "equal if |a-b| <= atol + rtol*|b|");
  group.single("--rtol", o.diff.rtol, "X", "see --atol");
  group.single("--ulp", o.diff.ulp, "N", "equal if at most N representable values apart");
  group.flag("--equal-nan", o.diff.equal_nan, "treat NaN as equal to NaN");
  group.single("--max-diffs", o.diff.max_diffs, "N", "list at most N differences per kind");
  OptionGroup names{app, "Names of one side"};
  names.many("--strip-prefix-a", o.diff.names_a.strip_prefix, "P",
             "as --strip-prefix, which changes A and B, on A only");
  names.many("--strip-prefix-b", o.diff.names_b.strip_prefix, "P", "the same on B only");
  names.many("--add-prefix-a", o.diff.names_a.add_prefix, "P", "as --add-prefix, on A only");
  names.many("--add-prefix-b", o.diff.names_b.add_prefix, "P", "the same on B only");
  names.many("--rename-a", o.diff.names_a.rename, "RE=NEW", "as --rename, on A only");
  names.many("--rename-b", o.diff.names_b.rename, "RE=NEW", "the same on B only");
}

void add_digest(CLI::App& app, Request& o) {
  OptionGroup{app, "Digest"}
      .single("--algorithm", o.algorithm, "NAME", "xxh3_128 (default) or sha256")
      ->check(CLI::IsMember({"xxh3_128", "sha256"}));
}

void add_cat(CLI::App& app, Request& o) {
  OptionGroup{app, "Output"}
      .single("--format", o.cat.format, "VALUE",
              "text (default), raw (packed little-endian elements, or the bytes of a string) or npy")
      ->check(CLI::IsMember({"text", "raw", "npy"}));
}

void add_completion(CLI::App& app, Request& o) { app.add_option("SHELL", o.shell, "bash, zsh or fish"); }

void add_global_options(CLI::App& app, CommonOptions& common, Request& o) {
  OptionGroup group{app, kGlobalOptions};
  group.flag("--json", common.json, "print one JSON document on stdout, even for errors");
  group.single("-j,--threads", common.threads, "N", "worker threads (default: all available CPUs)")
      ->check(CLI::Range(0, 4096));
  group.single(
      "--max-memory", common.max_memory, "SIZE",
      "buffer memory for all workers, and the same again on the device (default: 64MiB); --local-ranks share it");
  group.single("--progress", common.progress, "WHEN", "auto (default), always, never or json")
      ->check(CLI::IsMember({"auto", "always", "never", "json"}));
  group.single("--color", common.color, "WHEN", "auto (default), always or never")
      ->check(CLI::IsMember({"auto", "always", "never"}));
  group.flag("-q,--quiet", common.quiet, "print only data and errors");
  group.flag("-v,--verbose", common.verbose, "log each step and each rank's progress; -vv adds statistics");
  group.single("--log-file", common.log_file, "FILE", "append the log to a file, including what --quiet hides");
  group.single("--config", common.config, "FILE", "read options from a TOML or INI file");
  group.flag("-h,--help", o.help, "show this help");
  group.flag("--version", o.version, "show the version on one line");
}

void add_options(CLI::App& app, const Verb& verb, CommonOptions& common, Request& o) {
  add_groups(app, verb.uses, std::span(&verb, 1), common, o);
}

void add_all_options(CLI::App& app, CommonOptions& common, Request& o) {
  const Uses all{.sources = true,
                 .selection = true,
                 .target = true,
                 .page = true,
                 .target_layout = true,
                 .numbers = true,
                 .maps = true,
                 .computes = true,
                 .rank_options = true};
  add_groups(app, all, verbs(), common, o);
}

bool chooses_layout(const CLI::Option& option) {
  constexpr std::array<std::string_view, 6> kLayouts{"ranks", "mesh", "layout", "like", "shards", "max-shard-size"};
  return option.get_group() == kTargetLayout && contains(kLayouts, option.get_lnames().front());
}

bool concerns_one_process(const CLI::Option& option) {
  if (option.check_lname("local-input") || option.check_lname("local-output")) return false;
  constexpr std::array<std::string_view, 4> kGroups{kRankOptions, kStoreOptions, kGlobalOptions, ""};
  return contains(kGroups, option.get_group());
}

std::vector<std::string> long_names(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::Option* option : app.get_options()) {
    if (option->get_group().empty()) continue;
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
  }
  return names;
}

std::vector<std::string> all_long_names() { return long_names(OptionTree(add_all_options).app); }

std::string lower_first(std::string text) {
  const bool word = text.size() > 1 && text[0] >= 'A' && text[0] <= 'Z' && text[1] >= 'a' && text[1] <= 'z';
  if (word) text[0] = static_cast<char>(text[0] - 'A' + 'a');
  return text;
}

}  // namespace shard::app
