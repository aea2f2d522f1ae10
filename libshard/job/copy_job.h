/// \file The operation that split, gather, reshard and convert share: reader -> plan -> execute -> commit.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "libshard/catalog/selection/selection.h"
#include "libshard/catalog/targets/target.h"
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

/// A request for a manifest, with the provenance that it records.
struct ManifestRequest {
  HashAlgorithm algorithm = HashAlgorithm::kXxh3_128;
  std::string tool;                ///< Manifest::tool
  std::string options;             ///< Manifest::options
  std::vector<SourceFile> source;  ///< Manifest::source
};

/// Builds the target of a job. It is called once. The job then frees it, together with a selection that is as large as
/// the target.
struct TargetMaker {
  /// Builds the output's files, tensors and storages, without offsets.
  std::function<Catalog()> make;
  /// Builds the catalog that the plan fills, in the files and storages of the placed target. Empty: the target itself.
  std::function<Catalog(const Catalog& target)> fill{};
};

/// A target with the selected tensors and objects of the reader's catalog, unchanged. \pre `reader` outlives the result
TargetMaker selected_target(const Reader& reader, Selection selection, Layout layout, FormatTraits traits);

/// The selected tensors in the form that a map defines. \pre `map` outlives the result
/// \param first_padding  see AppliedMap::plan_target. The job's reader has the paddings
TargetMaker mapped_target(const AppliedMap& map, Layout layout, FormatTraits traits, std::uint32_t first_padding);

struct CopyJob {
  Reader* reader = nullptr;
  TargetMaker target;
  std::function<std::unique_ptr<Writer>(const Catalog& target)> make_writer;
  LocalDisk* reflink_disk = nullptr;  ///< The disk on which source and output may share blocks. Null: none.
  int threads = 1;
  std::int64_t max_memory_bytes = 64 << 20;
  /// The device that permutes and converts tiles. Null: the workers do. Either all ranks have a device, or none has. If
  /// ranks read for one another, pieces are sent from device to device if the group's backend is nccl or ranks are
  /// threads.
  Device* device = nullptr;
  std::chrono::milliseconds timeout{300'000};  ///< How long another rank's device may be silent.
  Topology topology{};
  /// The source files that this rank opened. The job fails if they changed before the commit. Null: no check.
  const WatchedStore* watched = nullptr;
  std::optional<ManifestRequest> manifest{};  ///< Empty: no manifest is written.
  bool dry_run = false;
  /// A digest of all that decides the values of computed tensors, apart from the files of the source. Runs with a
  /// different one do not resume each other. Empty: none is computed.
  std::string computation{};
  /// The program's version. If it is not empty, the job keeps a journal next to the output, from which a later run can
  /// resume an interrupted one.
  std::string version;
  /// Resumes an interrupted run of the same job, or starts from scratch if there is none. Threads and the number of
  /// ranks may differ. After an interruption or the failure of a rank, the output is kept for a further run.
  bool resume = false;
  std::stop_token stop;
  LateRanks* awaited = nullptr;  ///< On rank 0, receives the ranks that the others wait for. May be null.
  /// Every rank calls it with the name of its next step: "plan", "begin", "copy", "finish", "manifest", "commit", and
  /// with Topology::own_places, once all outputs are prepared, "publish". May be empty; may throw.
  std::function<void(std::string_view step)> on_step;
};

/// The results of a job, or of its plan with `dry_run`: all fields of `shardctl.result/1` and `shardctl.plan/1`. In a
/// job by owner, the numbers of bytes, copies, tiles and memory are this rank's. If Topology::sums_plans(), they are
/// sums over ranks, except memory, which is the largest of any rank. Free bytes of a dry run are the smallest of any
/// place.
struct CopyResult {
  std::string format;
  std::vector<File> files;
  std::int64_t tensors = 0, objects = 0;
  std::int64_t bytes_to_read = 0, bytes_to_write = 0, copies = 0, tiles = 0, memory_bytes = 0, free_bytes = 0;
  /// Only in plans: the bytes of `bytes_to_write` that the output's store will copy itself, unless its server refuses.
  std::int64_t bytes_to_clone = 0;
  std::vector<std::string> warnings;
};

/// Runs the job on all ranks of `group` (solo_group(): only this process). Each rank has a store for the same
/// destination, or for its own place. All ranks make the same plan. Each copies its share of the bytes and finishes the
/// files that it owns. Rank 0, or the lowest rank of each place, creates and commits the output. The output has the
/// same bytes for any group.
///
/// A different thread may read `progress` during the run. At the end, rank 0's contains the sums over ranks. `on_plan`
/// (may be empty) receives the numbers before the copy starts.
///
/// Once all ranks have finished, an output in one place is complete. The failure of a rank after that has no effect,
/// and rank 0 returns. With several places, either all are committed or none. If a rank fails in between, the error
/// states which places are committed. With a device, the job asks for its free memory before it plans, and uses the
/// smallest value of all ranks as its limit, on the hosts as well.
/// \throws Error  of any step, the same on all ranks. The destination is then unchanged, except in the case above.
/// \throws Error kInvalidArgument  ranks have different options or see different files from rank 0; or the output to
///   resume belongs to a different job and is kept
/// \throws Error kCorruption  the source changed during the run, or files of one name and size differ between ranks
/// \throws Error kResource  a device has too little memory; the message has both numbers
/// Memory: move the job in, because its selection is freed once the target, which is equally large, is built.
CopyResult run_copy_job(OutputStore& output, Group& group, CopyJob job, Progress& progress,
                        const std::function<void(const CopyResult&)>& on_plan);

}  // namespace shard
