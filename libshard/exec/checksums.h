/// \file
/// CRC-32 of storages, joined from runs that workers, or other ranks, write in any order.
#pragma once

#include <map>
#include <mutex>
#include <span>
#include <vector>

#include "libshard/catalog/catalog.h"
#include "libshard/io/reader.h"

namespace shard {

/// Runs that touch are joined at once, so that memory stays small. Bytes that nobody records are zeros.
/// Threads: `record` may be called by several; crc32_of after all of them.
class StorageChecksums : public Checksums {
 public:
  explicit StorageChecksums(const std::vector<Storage>& storages);
  /// \pre the run was not recorded before and lies in the storage.
  void record(std::uint32_t storage, std::int64_t offset_bytes, std::int64_t bytes, std::uint32_t crc);
  std::uint32_t crc32_of(std::uint32_t storage) const override;

  /// A run as it travels between ranks.
  struct Recorded {
    std::int64_t offset_bytes, bytes;
    std::uint32_t storage, crc;
  };
  std::vector<Recorded> recorded() const;
  /// Records another rank's. \throws Error kPeer  a run that cannot be.
  void record_all(std::span<const Recorded> runs);

 private:
  struct Run {
    std::int64_t bytes = 0;
    std::uint32_t crc = 0;
  };
  using Runs = std::map<std::int64_t, Run>;  ///< By offset; none touches the next.

  std::vector<std::int64_t> bytes_;
  std::vector<Runs> runs_;
  std::mutex mutex_;
};

}  // namespace shard
