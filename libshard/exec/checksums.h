/// \file The CRC-32s of storages, combined from runs that workers or other ranks write or read in any order.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <stop_token>
#include <vector>

#include "libshard/catalog/catalog.h"
#include "libshard/checkpoint/reader.h"
#include "libshard/checkpoint/writer.h"
#include "libshard/core/crc_runs.h"
#include "libshard/core/findings.h"

namespace shard {

/// A run of a storage, in the form in which ranks send it.
struct CrcRun {
  std::int64_t offset_bytes, bytes;
  std::uint32_t storage, crc;
};
/// Whether a run has bytes and is inside its storage.
bool fits(const CrcRun& run, std::span<const Storage> storages);

/// Combines runs. Bytes that no run covers count as zeros. Threads: several may call `record`; crc32_of only after all.
class StorageChecksums : public Checksums {
 public:
  /// Ownership: the storages must outlive this.
  explicit StorageChecksums(std::span<const Storage> storages)
      : storages_(storages), whole_(storages.size()), is_whole_(storages.size()) {}
  /// Adds a run. \returns the CRC-32 of the storage if this run completes it and it was not known
  /// \pre the run was not recorded before and is inside the storage.
  std::optional<std::uint32_t> record(std::uint32_t storage, std::int64_t offset_bytes, std::int64_t bytes,
                                      std::uint32_t crc);
  std::uint32_t crc32_of(std::uint32_t storage) const override;
  /// Sets the checksum of a storage that is not read as a whole. Its runs are ignored from now on.
  /// \pre no thread calls `record`
  void set_known(std::uint32_t storage, std::uint32_t crc);

  std::vector<CrcRun> recorded() const;
  /// Records the runs of a different rank. \throws Error kPeer  a run is invalid.
  void record_all(std::span<const CrcRun> runs);

 private:
  std::span<const Storage> storages_;
  std::vector<std::uint32_t> whole_;    ///< CRC-32s of complete storages.
  std::vector<std::uint8_t> is_whole_;  ///< Bytes rather than bits, because threads write neighbouring entries.
  std::set<std::uint32_t> known_;       ///< Storages of set_known.
  std::map<std::uint32_t, CrcRuns> begun_;
  std::mutex mutex_;  ///< Guards begun_.
};

/// Bytes of a storage that were read. Ownership: a view.
struct ReadBytes {
  std::int64_t offset_bytes;
  std::span<const std::byte> bytes;
  std::optional<std::uint32_t> crc{};  ///< The CRC-32 of `bytes`, if it is already computed.
};

/// Checks source storages against their container's CRC-32 (Storage::crc32) while they are read. Each one is checked
/// once all its bytes were read, in any order. Storages that are only partly read (see read_rest), or beyond a total of
/// kMostRuns runs, are not checked. Bytes that are read again count once. Threads: any. Memory: 64 bytes per run of
/// storages that are started and not complete.
class SourceChecks {
 public:
  /// Ownership: both must outlive this.
  explicit SourceChecks(const Catalog& source, Findings& findings = throwing_findings())
      : source_(source), findings_(findings) {}

  /// Adds reads of one storage that do not overlap. If the storage is complete and differs, reports kCorruption of kind
  /// crc_mismatch. Appends the new CRC-32s to `summed`, unless it is null. Cost: the CRC-32 of the bytes, if the
  /// storage has one and the read does not.
  void add(std::uint32_t storage, std::span<const ReadBytes> reads, std::vector<CrcRun>* summed = nullptr);

  /// The runs of storages that are not complete, for add_all on a different rank.
  std::vector<CrcRun> incomplete() const;
  /// Adds runs that a different rank, or an earlier run, has read. Reports like `add`. \throws Error kPeer  a run is
  /// invalid.
  void add_all(std::span<const CrcRun> runs);
  /// Reads the last bytes of storages of which most were read, so that these are checked as well. Such bytes are the
  /// padding of flat buffers (ZeRO, Megatron), and replicas that were read elsewhere. \param is_own  whether to do so
  /// for a storage. \pre no thread calls `add`
  void read_rest(const Reader& reader, const std::function<bool(const Storage&)>& is_own, const std::stop_token& stop);

 private:
  struct Rest {
    std::uint32_t storage;
    std::vector<CrcRuns::Range> parts;
  };
  static constexpr std::int64_t kReadParts = 8;      ///< At most one in this many bytes may be missing.
  static constexpr std::size_t kMostRuns = 1 << 18;  ///< Limits the memory to 16 MiB.

  std::vector<ReadBytes> missing(std::uint32_t storage, std::span<const ReadBytes> reads) const;
  std::vector<Rest> small_rests() const;
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
