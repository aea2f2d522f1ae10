/// \file
/// Checks source storages against their container's CRC-32 (Storage::crc32) while they are read.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <vector>

#include "libshard/catalog/catalog.h"
#include "libshard/core/crc_runs.h"
#include "libshard/core/findings.h"
#include "libshard/exec/checksums.h"

namespace shard {

/// Bytes of a storage, as they were read. Ownership: a view.
struct ReadBytes {
  std::int64_t offset_bytes;
  std::span<const std::byte> bytes;
};

/// A storage is checked once all its bytes were read, in any order. Storages that are read in part are not checked, nor
/// those that exceed kMostRuns pieces in total. Bytes that are read again count once. Threads: any. Memory: 64 bytes
/// for each run of storages that are begun and not complete.
class SourceChecks {
 public:
  /// Ownership: both must outlive this.
  explicit SourceChecks(const Catalog& source, Findings& findings = throwing_findings())
      : source_(source), findings_(findings) {}

  /// Reads of one storage that do not overlap. Reports (kCorruption of kind crc_mismatch) a storage that is complete
  /// and differs. Appends to `summed`, unless null, what it made the CRC-32 of. Cost: that, where the storage has one.
  void add(std::uint32_t storage, std::span<const ReadBytes> reads, std::vector<CrcRun>* summed = nullptr);

  /// What was read of storages that are not complete, for another rank's add_all.
  std::vector<CrcRun> incomplete() const;
  /// What another rank, or an earlier run, has read. Reports as `add`. \throws Error kPeer  a run that cannot be.
  void add_all(std::span<const CrcRun> runs);

 private:
  static constexpr std::size_t kMostRuns = 1 << 18;  ///< 16 MiB.

  std::vector<ReadBytes> missing(std::uint32_t storage, std::span<const ReadBytes> reads) const;
  void add_runs(std::uint32_t storage, std::span<const CrcRun> runs);
  std::optional<std::uint32_t> add_locked(const CrcRun& run);

  const Catalog& source_;
  Findings& findings_;
  std::mutex reporting_;  ///< The sink is called by one thread at a time.
  mutable std::mutex mutex_;
  std::map<std::uint32_t, CrcRuns> begun_;
  std::size_t run_count_ = 0;        ///< Of all storages that are begun.
  std::set<std::uint32_t> skipped_;  ///< Storages that are not compared: they came in too many runs.
};

}  // namespace shard
