/// \file SourceChecks: checks source storages against their container's CRC-32 (Storage::crc32) while they are read.
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

/// Bytes of a storage that were read. Ownership: a view.
struct ReadBytes {
  std::int64_t offset_bytes;
  std::span<const std::byte> bytes;
};

/// Checks a storage when all its bytes were read, in any order. It does not check storages that are only partly read,
/// or those beyond a total of kMostRuns runs. Bytes that are read again count once. Threads: any. Memory: 64 bytes per
/// run of storages that are started and not complete.
class SourceChecks {
 public:
  /// Ownership: both must outlive this.
  explicit SourceChecks(const Catalog& source, Findings& findings = throwing_findings())
      : source_(source), findings_(findings) {}

  /// Adds reads of one storage that do not overlap. If the storage is complete and differs, reports kCorruption of kind
  /// crc_mismatch. Appends the new CRC-32s to `summed`, unless it is null. Cost: the CRC-32 of the bytes, if the
  /// storage has one.
  void add(std::uint32_t storage, std::span<const ReadBytes> reads, std::vector<CrcRun>* summed = nullptr);

  /// The runs of storages that are not complete, for add_all on a different rank.
  std::vector<CrcRun> incomplete() const;
  /// Adds runs that a different rank, or an earlier run, has read. Reports like `add`. \throws Error kPeer  a run is
  /// invalid.
  void add_all(std::span<const CrcRun> runs);

 private:
  static constexpr std::size_t kMostRuns = 1 << 18;  ///< Limits the memory to 16 MiB.

  std::vector<ReadBytes> missing(std::uint32_t storage, std::span<const ReadBytes> reads) const;
  void add_runs(std::uint32_t storage, std::span<const CrcRun> runs);
  std::optional<std::uint32_t> add_locked(const CrcRun& run);

  const Catalog& source_;
  Findings& findings_;
  std::mutex reporting_;  ///< Only one thread at a time calls the sink.
  mutable std::mutex mutex_;
  std::map<std::uint32_t, CrcRuns> begun_;
  std::size_t run_count_ = 0;        ///< The number of runs of all started storages.
  std::set<std::uint32_t> skipped_;  ///< Storages that are not checked because they came in too many runs.
};

}  // namespace shard
