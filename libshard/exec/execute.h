/// \file
/// Runs a plan: bounded memory, several workers, the first error stops all.
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>
#include <span>
#include <stop_token>

#include "libshard/checkpoint/reader.h"
#include "libshard/device/device.h"
#include "libshard/exec/buffer_pool.h"
#include "libshard/exec/checksums.h"
#include "libshard/exec/framing.h"
#include "libshard/exec/source_checks.h"
#include "libshard/exec/tile_feed.h"
#include "libshard/exec/tile_log.h"
#include "libshard/io/file_writer.h"
#include "libshard/io/local_disk.h"
#include "libshard/plan/plan.h"

namespace shard {

/// Counters that a progress bar may read while work goes on, and the result document afterwards.
struct Progress {
  std::atomic<std::int64_t> bytes_read{0}, bytes_written{0}, bytes_cloned{0}, cast_overflows{0};
  std::atomic<std::int64_t> read_calls{0}, write_calls{0};
  std::atomic<std::int64_t> bytes_kept{0};    ///< Written by an earlier run, and read back.
  std::atomic<std::int64_t> bytes_sent{0};    ///< To other ranks.
  std::atomic<std::int64_t> others_bytes{0};  ///< What other ranks did so far, for progress.
  std::atomic<bool> is_summed{false};         ///< The counters are those of all ranks (on the root, at the end).

  /// What is in place so far by the counters.
  std::int64_t done_bytes() const { return bytes_written + bytes_kept; }
  /// What of it this rank did.
  std::int64_t own_bytes() const { return done_bytes() - (is_summed ? others_bytes.load() : 0); }
};

struct ExecuteOptions {
  int threads = 1;
  std::int64_t max_memory_bytes = 64 << 20;
  bool checksums = false;                 ///< Make CRC-32 of every target storage.
  std::optional<TileRange> tiles{};       ///< Only these: a rank's share. The checksums are then of its parts only.
  TileFeed* feed = nullptr;               ///< Says which tiles are ready, instead of `tiles`; all of them then.
  LocalDisk* reflink_disk = nullptr;      ///< Where reflinks may be tried, else null. What is cloned is not read.
  BufferPool* pool = nullptr;             ///< Where buffers come from; null: one of the call's own.
  Device* device = nullptr;               ///< Where tiles are permuted and converted; null: by the workers themselves.
  SourceChecks* source_checks = nullptr;  ///< Is told what is read; null: one of the call's own.
  TileLog* log = nullptr;                 ///< Is told of each tile, and says which need no copy; null: none.
  Framing* framing = nullptr;             ///< Frames to write with small storages; null: none. Needs `checksums`.
  std::stop_token stop{};                 ///< Asked between pieces; a stop ends in Error kInterrupted.
};

/// \throws Error kInterrupted  a stop was asked for.
void check_stop(const std::stop_token& stop);

/// What a plan whose tiles go through a device may take (PlanOptions::max_memory_bytes), so that its buffers, on the
/// host and on the device each, take at most `max_memory_bytes`: a worker holds two tiles, each twice on the device, in
/// the wider one of its dtypes. \throws Error kInvalidArgument  it is less than
/// least_memory_on_device
std::int64_t tile_memory_on_device(std::int64_t max_memory_bytes, const Catalog& source, const Catalog& target);
std::int64_t least_memory_on_device(const Catalog& source, const Catalog& target);

/// Copies every tile of `plan`, or those of a rank's share. `files[i]` is the open file of target.files[i].
/// \returns checksums of the target's storages (empty ones when not asked for).
/// \throws Error  the first one that any worker met; the others have stopped by then.
/// Threads: makes `threads` workers of its own; with a device as many as its memory allows. Memory: at most
/// max_memory_bytes of buffers, with a device as much there too (for a plan of tile_memory_on_device), and
/// FramedWrites' a worker.
std::unique_ptr<StorageChecksums> execute(const Plan& plan, const Catalog& source, const Reader& reader,
                                          const Catalog& target, std::span<FileWriter* const> files,
                                          const ExecuteOptions& options, Progress& progress);

}  // namespace shard
