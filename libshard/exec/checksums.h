/// \file The CRC-32s of storages, combined from runs that workers or other ranks write in any order.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "libshard/catalog/catalog.h"
#include "libshard/checkpoint/reader.h"
#include "libshard/checkpoint/writer.h"
#include "libshard/core/crc_runs.h"

namespace shard {

/// A run of a storage, in the form in which ranks send it.
struct CrcRun {
  std::int64_t offset_bytes, bytes;
  std::uint32_t storage, crc;
};
/// Whether a run is valid: it has bytes, and is inside its storage.
bool fits(const CrcRun& run, std::span<const Storage> storages);

/// Combines runs. Bytes that no run covers count as zeros. Threads: several may call `record`; crc32_of only after all
/// of them.
class StorageChecksums : public Checksums {
 public:
  /// Ownership: the storages must outlive this.
  explicit StorageChecksums(std::span<const Storage> storages)
      : storages_(storages), whole_(storages.size()), is_whole_(storages.size()) {}
  /// Adds a run. \returns the CRC-32 of the storage if this run completes it
  /// \pre the run was not recorded before and is inside the storage.
  std::optional<std::uint32_t> record(std::uint32_t storage, std::int64_t offset_bytes, std::int64_t bytes,
                                      std::uint32_t crc);
  std::uint32_t crc32_of(std::uint32_t storage) const override;

  std::vector<CrcRun> recorded() const;
  /// Records the runs of a different rank. \throws Error kPeer  a run is invalid.
  void record_all(std::span<const CrcRun> runs);

 private:
  std::span<const Storage> storages_;
  std::vector<std::uint32_t> whole_;    ///< CRC-32s of complete storages.
  std::vector<std::uint8_t> is_whole_;  ///< Bytes rather than bits, because threads write neighbouring entries.
  std::map<std::uint32_t, CrcRuns> begun_;
  std::mutex mutex_;  ///< Guards begun_.
};

}  // namespace shard
