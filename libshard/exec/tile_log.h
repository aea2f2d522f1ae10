/// \file
/// TileLog: what is remembered of tiles, so that a later run of the same plan need not copy them again.
#pragma once

#include <cstdint>
#include <vector>

#include "libshard/exec/checksums.h"

namespace shard {

/// What was written of a tile, and what of the source it was made of.
struct TileRecord {
  std::int64_t tile = 0;
  std::int64_t bytes = 0;  ///< Written, in the order of the plan, but for what was cloned.
  std::uint32_t crc = 0;   ///< CRC-32 of those.
  std::int64_t cast_overflows = 0;
  std::vector<CrcRun> sources;  ///< Of source storages that have a checksum to be held against.
};

/// Threads: any.
class TileLog {
 public:
  virtual ~TileLog() = default;
  /// What an earlier run wrote of the tile; null: nothing is known. Valid as long as the log.
  virtual const TileRecord* written_before(std::int64_t tile) const = 0;
  /// A tile is written. \throws Error kResource
  virtual void add(TileRecord record) = 0;
};

}  // namespace shard
