/// \file
/// What the user asked for, as plain data: one struct for each group of options, filled by parse_command_line.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "formats/weights.h"
#include "libshard/catalog/placement.h"
#include "libshard/catalog/selection.h"
#include "libshard/core/error.h"
#include "libshard/core/plural.h"

namespace shard::app {

struct Verb;

/// Options of every verb. Session carries them.
struct CommonOptions {
  bool json = false, quiet = false;
  int verbose = 0;  ///< Number of -v.
  std::string log_file, config, color = "auto", progress = "auto";
  int threads = 0;  ///< 0: all available CPUs.
  std::string max_memory = "64MiB";
};

/// Where a model map's numbers come from, beside the checkpoint.
struct MapNumbers {
  std::vector<std::string> set;  ///< "NAME=VALUE".
  std::string hf_ref;            ///< A folder with a config.json; export takes more from it.
};

struct ReadRequest {
  std::vector<std::string> paths;
  std::string from;
  std::string layout;  ///< Path of a layout document that says how the source was cut; verbs without a target layout.
  bool opaque_globals = false;
  Weights weights = Weights::kMasters;
  bool states_weights = false;  ///< --weights stands on the command line: a source that has no choice is an error.
  std::optional<std::int64_t> ranks_expected;
  std::string map;  ///< Name or path of a model map that is undone; empty: none.
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

struct WriteRequest {
  std::string path;  ///< -o.
  std::string to;
  std::optional<RankFiles> rank_files;  ///< --as.
  std::string core_version;             ///< --core-version: "0.18" or "0.19"; empty: not given.
  LayoutRequest layout;
  bool dry_run = false, force = false, no_fsync = false, resume = false;
  std::string checksum = "none";  ///< "none", "xxh3", "sha256": of the manifest.
  std::string map;                ///< Name or path of a model map for what is written, or of diff's B; empty: none.
  bool if_changed = false;        ///< Do nothing where DST's manifest says that it is what would be made.

  bool wants_manifest() const { return checksum != "none" || if_changed; }
};

/// How the ranks of this job find one another; see libshard/ranks/launch.h.
struct RunRequest {
  std::string launcher = "auto", rdzv, backend = "auto";
  std::optional<int> rank, world_size;
  int local_ranks = 0;   ///< Ranks as threads of this process; 0: none.
  double timeout = 300;  ///< Seconds.
  bool local_input = false, local_output = false;
  std::string device = "cpu";  ///< "cpu", "cuda" or "cuda:N".
};

/// What the launcher says about this process; not options.
struct LaunchFacts {
  std::string error_file;  ///< torchrun shows what is written there.
  int rank = 0, size = 1;  ///< Until there is a group.
  int local_rank = 0;
};

struct InspectRequest {
  bool all = false;  ///< A line for each tensor on a terminal too.
};

/// --html of the verbs that show something.
struct PageRequest {
  std::string path;    ///< Empty: no page.
  bool force = false;  ///< Replace what is there.
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

struct Request {
  std::string verb_name;               ///< As typed: perhaps of a verb that does not exist.
  const Verb* verb = nullptr;          ///< Null for bare --help or --version.
  std::vector<std::string> arguments;  ///< As typed, for hints that repeat the line.
  bool help = false, version = false;

  ReadRequest source;
  SelectionOptions selection;
  WriteRequest target;
  RunRequest ranks;
  LaunchFacts launch;
  InspectRequest inspect;
  PageRequest page;
  ExportRequest exporting;
  DiffRequest diff;
  CatRequest cat;
  MapRequest map;
  std::string algorithm = "xxh3_128";  ///< digest.
  std::string like;                    ///< repair: path of a checkpoint of the same job.
  std::string against;                 ///< verify: path of a manifest; empty: the one that lies there.
  std::string shell;                   ///< completion.
};

/// A mistake in the command line.
Error usage(const std::string& message);

/// "5GB" (10^9), "5GiB", "64k", "123": bytes. Letters in any case; decimals allowed ("1.5GB").
/// \throws Error kInvalidArgument  naming `option`.
std::int64_t parse_size(const std::string& text, const std::string& option);
/// "16.06 GB", "812 bytes": for people.
std::string human_bytes(std::int64_t bytes);
/// "45 s", "12 min 5 s", "3 h 20 min", "2 d 7 h": for people. \pre not negative
std::string human_seconds(double seconds);
int usable_cpus();

}  // namespace shard::app
