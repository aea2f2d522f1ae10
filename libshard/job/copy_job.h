/// \file
/// The one operation behind split, gather, reshard and convert: reader -> plan -> execute -> commit.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "libshard/catalog/selection.h"
#include "libshard/catalog/target.h"
#include "libshard/checkpoint/reader.h"
#include "libshard/checkpoint/writer.h"
#include "libshard/device/device.h"
#include "libshard/exec/execute.h"
#include "libshard/io/local_disk.h"
#include "libshard/io/output.h"
#include "libshard/io/watched_store.h"
#include "libshard/job/topology.h"
#include "libshard/manifest/manifest.h"
#include "libshard/map/passes/apply.h"
#include "libshard/ranks/group.h"
#include "libshard/ranks/late_ranks.h"

namespace shard {

/// Request for a manifest, including the provenance to record in it.
struct ManifestRequest {
  HashAlgorithm algorithm = HashAlgorithm::kXxh3_128;
  std::string tool;                ///< Manifest::tool
  std::string options;             ///< Manifest::options
  std::vector<SourceFile> source;  ///< Manifest::source
};

/// Builds the target of a job. Called once; the job then frees it, and with it a selection as large as the target.
struct TargetMaker {
  /// The output's files, tensors and storages, not yet placed.
  std::function<Catalog()> make;
  /// The catalog that the plan fills, in the files and storages of the placed target. Empty: the target itself.
  std::function<Catalog(const Catalog& target)> fill{};
};

/// The selected tensors and objects of the reader's catalog, as they are. \pre `reader` outlives the result
TargetMaker selected_target(const Reader& reader, Selection selection, Layout layout, FormatTraits traits);

/// The selected tensors in the form that a map defines. \pre `map` outlives the result
/// \param first_padding  see AppliedMap::plan_target; the job's reader has the paddings
TargetMaker mapped_target(const AppliedMap& map, Layout layout, FormatTraits traits, std::uint32_t first_padding);

struct CopyJob {
  Reader* reader = nullptr;
  TargetMaker target;
  std::function<std::unique_ptr<Writer>(const Catalog& target)> make_writer;
  LocalDisk* reflink_disk = nullptr;  ///< Where source and output may share blocks; null: nowhere.
  int threads = 1;
  std::int64_t max_memory_bytes = 64 << 20;
  /// Where tiles are permuted and converted; null: by the workers. On all ranks or on none, each rank with its own.
  /// With ranks that read for one another pieces travel from device to device, where the group's backend is nccl, or
  /// ranks are threads.
  Device* device = nullptr;
  std::chrono::milliseconds timeout{300'000};  ///< How long another rank's device may be silent.
  Topology topology{};
  /// The source files that this rank opened. The job fails if they changed before the commit. Null: no check.
  const WatchedStore* watched = nullptr;
  std::optional<ManifestRequest> manifest{};  ///< None: no manifest is written.
  bool dry_run = false;
  /// Of the program. Not empty: a journal is kept beside the output, by which a later run can go on where this one is
  /// killed.
  std::string version;
  /// Resumes a killed run of the same job; starts from scratch if there is none. Threads and the number of ranks
  /// may be others. An interruption or a lost rank leaves what was written for a further run.
  bool resume = false;
  std::stop_token stop;
  LateRanks* awaited = nullptr;  ///< Is told on rank 0 whom the others wait for; may be null.
  /// Told by every rank what it does next: "plan", "begin", "copy", "finish", "manifest", "commit", and with
  /// Topology::own_places, once all are prepared, "publish". May be empty; may throw.
  std::function<void(std::string_view step)> on_step;
};

/// What was done, or with `dry_run` would be: all that `shardctl.result/1` and `shardctl.plan/1` say. The numbers of
/// bytes, copies, tiles and memory of a job by owner are this rank's. With several places, or
/// Topology::peer_store, the same numbers are sums over ranks, but of memory the most of a rank, and of free bytes the
/// least of a place.
struct CopyResult {
  std::string format;
  std::vector<File> files;
  std::int64_t tensors = 0, objects = 0;
  std::int64_t bytes_to_read = 0, bytes_to_write = 0, copies = 0, tiles = 0, memory_bytes = 0, free_bytes = 0;
  std::vector<std::string> warnings;
};

/// Runs the job by all ranks of `group` (solo_group(): by this process alone), each with a store for one and the same
/// destination, or for a place of its own. Every rank plans alike, copies its share of the bytes and finishes the files
/// that it owns; rank 0, or the lowest rank of each place, begins and commits the output. The bytes written are the
/// same for any group. `progress` may be read by another thread meanwhile; in the end rank 0's holds the sums over
/// ranks. `on_plan` (may be empty) is told the numbers before bytes move. Once all ranks have finished, an output of
/// one place is whole: losing a rank after that has no effect, and rank 0 returns. With several places all are
/// committed, or none; a rank that is lost between is an error that says where the output stands.
/// With a device its free memory is asked before anything is planned, and the least of all ranks' counts: the job takes
/// no more than that, on the hosts either.
/// \throws Error  of any step, the same on all ranks; the destination is then as it was, but for such a loss.
///   kInvalidArgument  ranks have other options or see other files than rank 0; or what is resumed was another job:
///   what it left behind then stays. kCorruption  the source changed while it was read.
///   kResource  a device has too little memory, with both numbers.
/// Memory: move the job in, because its selection is freed once the target, which is equally large, is built.
CopyResult run_copy_job(OutputStore& output, Group& group, CopyJob job, Progress& progress,
                        const std::function<void(const CopyResult&)>& on_plan);

}  // namespace shard
