/// \file
/// What the user asked for, as plain data: one struct for all verbs, filled by parse_command_line.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "libshard/catalog/placement.h"
#include "libshard/catalog/selection.h"

namespace shard::app {

/// Where the pieces of the target go; at most one kind is given (checked by the parser).
struct LayoutOptions {
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

/// How the ranks of this job find one another; see libshard/ranks/launch.h.
struct RankOptions {
  std::string launcher = "auto", rdzv, backend = "auto";
  std::optional<int> rank, world_size;
  int local_ranks = 0;   ///< Ranks as threads of this process; 0: none.
  double timeout = 300;  ///< Seconds.
};

struct Options {
  std::string verb;                    ///< "inspect", ..., "help", "version"; empty for bare --help or --version.
  std::vector<std::string> arguments;  ///< As typed, for hints that repeat the line.

  bool help = false, version = false;
  bool json = false, quiet = false;
  int verbose = 0;  ///< Number of -v.
  std::string log_file, config, color = "auto", progress = "auto";
  int threads = 0;  ///< 0: as many as CPUs may be used.
  std::string max_memory = "64MiB";

  std::vector<std::string> sources;  ///< Paths; for `help` the verb.
  std::string from;
  std::string
      source_layout;  ///< Path of a layout document that says how the source is cut; verbs without a target layout.
  bool opaque_globals = false;
  std::optional<std::int64_t> ranks_expected;
  SelectionOptions selection;

  std::string output, to;
  std::optional<RankFiles> rank_files;  ///< --as.
  LayoutOptions layout;
  bool dry_run = false, force = false, no_fsync = false;

  RankOptions ranks;
  // Not options: the launcher says them.
  std::string error_file;                ///< torchrun shows what is written there.
  int ranks_here = 1;                    ///< That share this machine's CPUs.
  int launch_rank = 0, launch_size = 1;  ///< Until there is a group.

  std::string algorithm = "xxh3_128";

  std::string name;  ///< cat: of a tensor or object, with a slice behind it perhaps.
  std::string cat_format = "text";

  std::string shell;  ///< completion.

  double atol = 0, rtol = 0;
  std::int64_t ulp = 0;
  bool equal_nan = false;
  std::optional<std::int64_t> max_diffs;
};

/// "5GB" (10^9), "5GiB", "64k", "123": bytes. Letters in any case; decimals allowed ("1.5GB").
/// \throws Error kInvalidArgument  naming `option`.
std::int64_t parse_size(const std::string& text, const std::string& option);
/// "16.06 GB", "812 bytes": for people.
std::string human_bytes(std::int64_t bytes);
/// "1 file", "3 files".
std::string plural(std::int64_t count, std::string_view word);
/// Threads to work with: what was asked for, else this rank's share of the CPUs that this process may use.
int worker_count(const Options& options);
int usable_cpus();

}  // namespace shard::app
