/// \file
/// Source storages against the CRC-32 that their container has for them (Storage::crc32), as they are read.
#pragma once

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <span>
#include <unordered_map>
#include <vector>

#include "libshard/catalog/catalog.h"
#include "libshard/exec/checksums.h"
#include "libshard/exec/crc_runs.h"

namespace shard {

/// A storage is compared as soon as all of its bytes were read, in whatever pieces; one that is read in part is not.
/// Bytes that are read again count once. Threads: any. Memory: the runs of storages that are begun and not complete.
class SourceChecks {
 public:
  explicit SourceChecks(const Catalog& source) : source_(source) {}

  /// Bytes of a storage, as they were read. Cost: their CRC-32, where the storage has one.
  /// \throws Error kCorruption (kind crc_mismatch)  the storage is complete and differs.
  void add(std::uint32_t storage, std::int64_t offset_bytes, std::span<const std::byte> bytes);

  /// What was read of storages that are not complete, for another rank's add_all.
  std::vector<CrcRun> incomplete() const;
  /// \throws Error kPeer  a run that cannot be; kCorruption  as `add`.
  void add_all(std::span<const CrcRun> runs);

 private:
  void add_run(const CrcRun& run);

  const Catalog& source_;
  mutable std::mutex mutex_;
  std::unordered_map<std::uint32_t, CrcRuns> begun_;
};

}  // namespace shard
