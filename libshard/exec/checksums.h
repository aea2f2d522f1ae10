/// \file
/// CRC-32 of storages, joined from runs that workers, or other ranks, write in any order.
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

/// A run of a storage as it travels between ranks.
struct CrcRun {
  std::int64_t offset_bytes, bytes;
  std::uint32_t storage, crc;
};
/// Whether such a run can be: it has bytes, and lies in its storage.
bool fits(const CrcRun& run, std::span<const Storage> storages);

/// Bytes that nobody records are zeros.
/// Threads: `record` may be called by several; crc32_of after all of them.
class StorageChecksums : public Checksums {
 public:
  /// Ownership: the storages must outlive this.
  explicit StorageChecksums(std::span<const Storage> storages)
      : storages_(storages), whole_(storages.size()), is_whole_(storages.size()) {}
  /// \returns the CRC-32 of the storage where this run was the last that it lacked
  /// \pre the run was not recorded before and lies in the storage.
  std::optional<std::uint32_t> record(std::uint32_t storage, std::int64_t offset_bytes, std::int64_t bytes,
                                      std::uint32_t crc);
  std::uint32_t crc32_of(std::uint32_t storage) const override;

  std::vector<CrcRun> recorded() const;
  /// Records another rank's. \throws Error kPeer  a run that cannot be.
  void record_all(std::span<const CrcRun> runs);

 private:
  std::span<const Storage> storages_;
  std::vector<std::uint32_t> whole_;    ///< CRC-32s of complete storages.
  std::vector<std::uint8_t> is_whole_;  ///< Not bits, as threads write neighbours.
  std::map<std::uint32_t, CrcRuns> begun_;
  std::mutex mutex_;  ///< Guards begun_.
};

}  // namespace shard
