/// \file
/// The user's request as plain data: one struct for each thing that functions are asked for (what to read, what to
/// write, how to run, ...). parse_command_line fills a Request; a verb hands its parts on, and no function below a verb
/// sees the whole.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "formats/format.h"
#include "libshard/catalog/placement.h"
#include "libshard/catalog/selection.h"
#include "libshard/core/dtype.h"
#include "libshard/core/error.h"

namespace shard::app {

struct Verb;

/// Where a model map's numbers come from, beside the checkpoint.
struct MapNumbers {
  std::vector<std::string> set;  ///< "NAME=VALUE".
  std::string hf_ref;            ///< A folder with a config.json; export takes more from it.
};

/// The source, and how to read it.
struct ReadRequest {
  std::vector<std::string> paths;
  std::string from;
  std::string layout;  ///< Path of a layout document that says how the source was cut; verbs without a target layout.
  bool opaque_globals = false;
  FormatChoices choices;  ///< See Format::read_options.
  /// The names in `choices` from the command line. If no source has such a choice, that is an error.
  std::vector<std::string> stated_choices;
  std::optional<std::int64_t> ranks_expected;
  std::optional<DType> dequantize;  ///< Quantized weights are computed in this dtype.
  std::string map;                  ///< Name or path of a model map that is undone; empty: none.
  MapNumbers numbers;
};

/// How the target is cut; at most one kind is given (checked by the parser).
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
  std::string_view format_of_pieces{};  ///< Of sharded tensors.
  bool keeps_format = false;            ///< The source's format.
  bool keeps_layout = false;            ///< The source's layout, if the format can store pieces.
  bool needs_layout = false;            ///< A layout must be given.
  bool always_folder = false;           ///< DST is a folder, whatever its name.
  bool remakes = false;                 ///< Also formats that take all of one source as it is (Format::remake).
};

/// What to write, and where.
struct WriteRequest {
  std::string path;  ///< -o.
  std::string to;
  std::optional<RankFiles> rank_files;  ///< --as.
  FormatChoices choices;                ///< See Format::write_options.
  LayoutRequest layout;
  bool dry_run = false, force = false, no_fsync = false, resume = false;
  std::string checksum = "none";  ///< "none", "xxh3", "sha256": of the manifest.
  std::string map;                ///< Name or path of a model map for what is written, or of diff's B; empty: none.
  bool if_changed = false;        ///< Do nothing if DST's manifest shows that it is up to date.
  TargetDefaults defaults{};      ///< Of the verb.

  bool wants_manifest() const { return checksum != "none" || if_changed; }
};

/// How to run: ranks and how they find one another (libshard/ranks/launch.h), and the device.
struct RunRequest {
  std::string launcher = "auto", rdzv, backend = "auto";
  std::optional<int> rank, world_size;
  int local_ranks = 0;   ///< Ranks as threads of this process; 0: none.
  double timeout = 300;  ///< Seconds.
  bool local_input = false, local_output = false;
  std::string device = "cpu";  ///< "cpu", "cuda" or "cuda:N".
};

struct InspectRequest {
  bool all = false;  ///< A line for each tensor on a terminal too.
};

/// The HTML page to write.
struct PageRequest {
  std::string path;    ///< Empty: no page.
  bool force = false;  ///< Replace an existing page.
  /// Files besides SRC and --hf-ref that options name, and --log-file. The page may not replace them.
  std::vector<std::string> named_inputs{};
};

struct ExportRequest {
  std::string dtype = "keep";  ///< "keep", "auto" or a dtype's name.
  bool no_check = false;       ///< Names and shapes need not be those of the reference.
  SelectionOptions names{};    ///< --include and --exclude, which see the source's names.
};

/// Changes of names on one side of a comparison.
struct SideNames {
  std::vector<std::string> strip_prefix, add_prefix, rename;
};

struct DiffRequest {
  SideNames names_a, names_b;  ///< After those of SelectionOptions, which change both sides.
  double atol = 0, rtol = 0;
  std::int64_t ulp = 0;
  bool equal_nan = false;
  std::optional<std::int64_t> max_diffs;
};

struct MapRequest {
  std::string action;  ///< "list", "show" or "check".
  std::string name;    ///< Of a built-in map, or a path.
};

struct CatRequest {
  std::string name;  ///< A tensor's or an object's, perhaps followed by a slice.
  std::string format = "text";
};

/// Request of the writing verbs.
struct CopyRequest {
  ReadRequest read;
  SelectionOptions select;
  WriteRequest write;
  RunRequest run;
  /// Files besides SRC and --hf-ref that options name, and --log-file. No output may replace them.
  std::vector<std::string> named_inputs;
  ExportRequest exporting;  ///< export only.
  std::string like;         ///< repair only: path of a checkpoint of the same job.
};

/// The whole command line.
struct Request : CopyRequest {
  const Verb* verb = nullptr;  ///< Null for bare --help or --version.
  bool help = false, version = false;
  bool all_options = false;  ///< help: list every option.

  InspectRequest inspect;
  PageRequest page;
  DiffRequest diff;
  CatRequest cat;
  MapRequest map;
  std::string algorithm = "xxh3_128";  ///< digest.
  std::string against;                 ///< verify: path of a manifest; empty: the checkpoint's own.
  std::string shell;                   ///< completion.
};

/// A mistake in the command line.
Error usage(const std::string& message);

/// "5GB" (10^9), "5GiB", "64k", "123": bytes. Letters in any case; decimals allowed ("1.5GB").
/// \throws Error kInvalidArgument  naming `option`.
std::int64_t parse_size(const std::string& text, const std::string& option);

}  // namespace shard::app
