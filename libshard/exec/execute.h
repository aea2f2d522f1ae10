/// \file Runs a plan in bounded memory with several workers. The first error stops all of them.
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>
#include <span>
#include <stop_token>

#include "libshard/checkpoint/reader.h"
#include "libshard/core/parallel.h"
#include "libshard/device/device.h"
#include "libshard/exec/buffer_pool.h"
#include "libshard/exec/checksums.h"
#include "libshard/exec/framing.h"
#include "libshard/exec/tile_feed.h"
#include "libshard/exec/tile_log.h"
#include "libshard/io/file_writer.h"
#include "libshard/io/local_disk.h"
#include "libshard/plan/plan.h"

namespace shard {

/// Counters for a progress bar during the run, and for the result document afterwards.
struct Progress {
  std::atomic<std::int64_t> bytes_read{0}, bytes_written{0}, bytes_cloned{0}, cast_overflows{0};
  std::atomic<std::int64_t> read_calls{0}, write_calls{0};
  std::atomic<std::int64_t> bytes_kept{0};    ///< Bytes that an earlier run wrote and that were read back.
  std::atomic<std::int64_t> bytes_sent{0};    ///< Bytes sent to other ranks.
  std::atomic<std::int64_t> others_bytes{0};  ///< The progress of other ranks so far.
  std::atomic<bool> is_summed{false};         ///< Whether the counters include all ranks (on rank 0, at the end).

  /// The bytes that are in their final position, by the counters.
  std::int64_t done_bytes() const { return bytes_written + bytes_kept; }
  /// This rank's part of done_bytes().
  std::int64_t own_bytes() const { return done_bytes() - (is_summed ? others_bytes.load() : 0); }
};

struct ExecuteOptions {
  int threads = 1;
  std::int64_t max_memory_bytes = 64 << 20;
  bool checksums = false;                 ///< Compute the CRC-32 of every target storage.
  std::optional<TileRange> tiles{};       ///< Copy only these, a rank's share. Checksums cover only its parts.
  TileFeed* feed = nullptr;               ///< Provides all tiles as they become ready, instead of `tiles`.
  LocalDisk* reflink_disk = nullptr;      ///< The disk for reflinks, or null. Not used with `checksums`.
  BufferPool* pool = nullptr;             ///< The pool for buffers. Null: the call creates one.
  Device* device = nullptr;               ///< The device that permutes and converts tiles. Null: the workers do.
  SourceChecks* source_checks = nullptr;  ///< Receives everything that is read. Null: the call creates one.
  TileLog* log = nullptr;                 ///< Receives each tile, and lists those that need no copy. May be null.
  Framing* framing = nullptr;             ///< Frames to write with small storages. Null: none. Requires `checksums`.
  std::stop_token stop{};                 ///< Checked between pieces. Ends the call with Error kInterrupted.
};

/// The value of PlanOptions::max_memory_bytes for a plan whose tiles go through a device, so that its buffers use at
/// most `max_memory_bytes` on the host and on the device each. A worker holds two tiles, and the device holds each of
/// them twice, in the wider of the tile's two dtypes.
/// \throws Error kInvalidArgument  `max_memory_bytes` is less than least_memory_on_device
std::int64_t tile_memory_on_device(std::int64_t max_memory_bytes, const Catalog& source, const Catalog& target);
std::int64_t least_memory_on_device(const Catalog& source, const Catalog& target);

/// Copies every tile of `plan`, or those of a rank's share. `files[i]` is the open file of target.files[i].
/// \returns checksums of the target's storages (empty if they were not requested).
/// \throws Error  the first error of any worker, after all others have stopped.
/// Threads: starts `threads` workers; with a device, as many as its memory allows. Memory: at most max_memory_bytes of
/// buffers, the same again on a device (for a plan of tile_memory_on_device), and that of FramedWrites per worker.
std::unique_ptr<StorageChecksums> execute(const Plan& plan, const Catalog& source, const Reader& reader,
                                          const Catalog& target, std::span<FileWriter* const> files,
                                          const ExecuteOptions& options, Progress& progress);

}  // namespace shard
