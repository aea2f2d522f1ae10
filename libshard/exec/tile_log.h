/// \file TileLog: records finished tiles, so that a later run of the same plan need not copy them again.
#pragma once

#include <cstdint>
#include <vector>

#include "libshard/exec/checksums.h"

namespace shard {

/// The data written for a tile, and the source data from which it was made.
struct TileRecord {
  std::int64_t tile = 0;
  std::int64_t bytes = 0;  ///< The number of bytes written, in the order of the plan, without cloned ones.
  std::uint32_t crc = 0;   ///< The CRC-32 of those bytes.
  std::int64_t cast_overflows = 0;
  std::vector<CrcRun> sources;  ///< The runs of source storages that have a checksum to compare with.
};

/// Threads: any.
class TileLog {
 public:
  virtual ~TileLog() = default;
  /// The record of an earlier run for the tile, or null if there is none. Valid as long as the log.
  virtual const TileRecord* written_before(std::int64_t tile) const = 0;
  /// Records a written tile. \throws Error kResource
  virtual void add(TileRecord record) = 0;
};

}  // namespace shard
