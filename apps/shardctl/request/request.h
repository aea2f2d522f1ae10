/// \file
/// The user's request as plain data, with one struct per purpose: what to read, what to write, how to run, and so on.
/// parse_command_line fills a Request. A verb passes on only the parts that a function needs.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "formats/format.h"
#include "formats/open/source.h"
#include "libshard/catalog/layouts/placement.h"
#include "libshard/catalog/selection/selection.h"
#include "libshard/core/dtype.h"
#include "libshard/core/error.h"

namespace shard::app {

struct Verb;

/// The source and the way to read it. `layout` is only for verbs without a target layout. Verbs also read other files
/// in `numbers.hf_ref`.
struct ReadRequest : SourceRequest {
  /// The names in `choices` that the command line gave. It is an error if no source has such a choice.
  std::vector<std::string> stated_choices;
  std::vector<std::string> lora;  ///< "ADAPTER[=WEIGHT]"; the parser fills `adapters` from it.
  /// Files besides `paths` and --hf-ref that options name, and --log-file. No output and no page may replace them.
  std::vector<std::string> named_inputs;
};

/// The sharding of the target. The parser ensures that at most one kind is given.
struct LayoutRequest {
  std::optional<std::int64_t> ranks;
  std::optional<int> dim;
  std::string mesh;
  std::vector<std::string> place;  ///< "GLOB=P[,P...]".
  std::string layout;              ///< Path of a shardctl.layout/1 document.
  std::string like;                ///< Path of a checkpoint.
  std::optional<std::int64_t> shards;
  std::string max_shard_size;

  bool cuts_tensors() const { return ranks || !mesh.empty() || !layout.empty() || !like.empty(); }
  bool cuts_files() const { return shards || !max_shard_size.empty(); }
};

/// A writing verb's defaults, used if neither options nor DST's suffix decide.
struct TargetDefaults {
  std::string_view format{};            ///< For whole tensors.
  std::string_view format_of_pieces{};  ///< For sharded tensors.
  bool keeps_format = false;            ///< Use the source's format.
  bool keeps_layout = false;            ///< Use the source's layout, if the format can store pieces.
  bool needs_layout = false;            ///< A layout is required.
  bool always_folder = false;           ///< DST is a folder, regardless of its name.
  bool rewrites = false;                ///< Allow formats that convert a whole source unchanged (Format::rewrite).
};

/// The target and the way to write it.
struct WriteRequest {
  std::string path;  ///< -o.
  std::string to;
  std::optional<RankFiles> rank_files;  ///< --as.
  FormatChoices choices;                ///< See Format::write_options.
  LayoutRequest layout;
  bool dry_run = false, force = false, no_fsync = false, resume = false;
  std::string checksum = "none";  ///< The manifest's checksum: "none", "xxh3" or "sha256".
  std::string map;                ///< Name or path of a model map for the output, or for B of diff; empty: none.
  bool if_changed = false;        ///< Do nothing if DST's manifest shows that it is up to date.
  TargetDefaults defaults{};      ///< The verb's defaults.

  bool wants_manifest() const { return checksum != "none" || if_changed; }
};

/// How to run: the ranks, how they find each other (libshard/ranks/launch.h), and the device.
struct RunRequest {
  std::string launcher = "auto", rdzv, backend = "auto";
  std::optional<int> rank, world_size;
  int local_ranks = 0;   ///< Ranks to run as threads in this process; 0: none.
  double timeout = 300;  ///< Seconds.
  bool local_input = false, local_output = false;
  std::string device = "cpu";  ///< "cpu", "cuda" or "cuda:N".
};

struct InspectRequest {
  bool all = false;  ///< On a terminal, print a line for each tensor.
};

/// The HTML page to write.
struct PageRequest {
  std::string path;    ///< Empty: no page.
  bool force = false;  ///< Replace an existing page.
};

struct ExportRequest {
  std::string dtype = "keep";  ///< "keep", "auto" or a dtype's name.
  bool no_check = false;       ///< Names and shapes may differ from the reference.
  SelectionOptions names{};    ///< --include and --exclude, which match the source's names.
};

struct AverageRequest {
  std::string weights;           ///< "W,W,...", one per source; empty: all are equal.
  std::optional<double> ema;     ///< The decay of a moving average.
  std::string dtype;             ///< A dtype's name; empty: the first source's.
  bool optimizer = false;        ///< Also average states of the trainer.
  std::vector<float> factors{};  ///< One per source, from `weights` and `ema`.
};

/// Renames on one side of a comparison.
struct SideNames {
  std::vector<std::string> strip_prefix, add_prefix, rename;
};

struct DiffRequest {
  SideNames names_a, names_b;  ///< Applied after those in SelectionOptions, which change both sides.
  double atol = 0, rtol = 0;
  std::int64_t ulp = 0;
  bool equal_nan = false;
  std::optional<std::int64_t> max_diffs;
};

struct MapRequest {
  std::string action;  ///< "list", "show" or "check".
  std::string name;    ///< Name of a built-in map, or a path.
};

struct CatRequest {
  std::string name;  ///< Name of a tensor or an object, possibly with a slice.
  std::string format = "text";
};

/// The request of the writing verbs.
struct CopyRequest {
  ReadRequest read;
  SelectionOptions select;
  WriteRequest write;
  RunRequest run;
  ExportRequest exporting;    ///< export only.
  AverageRequest averaging;   ///< average only.
  std::string like;           ///< repair only: path of a checkpoint of the same job.
  bool left_uploads = false;  ///< repair only: list the uploads of killed runs, or remove them.
};

/// The whole command line.
struct Request : CopyRequest {
  const Verb* verb = nullptr;  ///< Null for plain --help or --version.
  bool help = false, version = false;
  bool all_options = false;  ///< help: describe every option.

  InspectRequest inspect;
  PageRequest page;
  DiffRequest diff;
  CatRequest cat;
  MapRequest map;
  std::string algorithm = "xxh3_128";  ///< digest.
  std::string against;  ///< verify: path of a manifest (empty: the checkpoint's own), or a quantized checkpoint.
  std::string shell;    ///< completion.
};

/// An error in the command line.
Error usage(const std::string& message);

/// Bytes from "5GB" (10^9), "5GiB", "64k" or "123". Case does not matter; decimals are allowed ("1.5GB").
/// \throws Error kInvalidArgument  naming `option`.
std::int64_t parse_size(const std::string& text, const std::string& option);

}  // namespace shard::app
