/// \file
/// Checksums of source bytes that another rank read and sent, for the record of a tile. Inside libshard/exec only.
#pragma once

#include <cstdint>
#include <vector>

#include "libshard/exec/checksums.h"
#include "libshard/exec/tile_feed.h"

namespace shard {

/// Appends to `runs` the CRC-32 of every run of the piece's storage that a box of `piece` holds, where the storage has
/// a checksum that they can make up. \returns false, having appended nothing, where they cannot be told: the box lies
/// on a device, or comes in too many runs; a later run must then read it again. Cost: the CRC-32.
bool sum_received(const Catalog& source, const Piece& piece, const ReceivedBox& received, std::int64_t element_bytes,
                  std::vector<CrcRun>& runs);

}  // namespace shard
