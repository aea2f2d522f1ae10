/// \file Copies of tiles whose bytes go from a server's answers to a local file as they arrive, before the workers
///   begin. Inside libshard/exec only.
#pragma once

#include <cstdint>
#include <vector>

#include "libshard/exec/tile_work.h"

namespace shard {

/// Copies the tiles, within `tiles`, that are one run of a source file with RandomReader::stream and one run of a local
/// file. Runs near each other in a source file are one request of at most 8 MiB, or of one tile. These tiles are left
/// to the workers: those of storages with a CRC-32, which is checked, those of tensors that are divided into small
/// pieces, those that would be requests of less than 1 MiB, and those with a record of an earlier run, which must be
/// read back.
/// \returns for each of `tiles` whether it was copied. \throws Error  as `execute`
/// Threads: starts as many as the source has streams. Memory: a buffer of the pool of at most 1 MiB for each stream,
/// and 48 bytes for each tile that is copied.
std::vector<std::uint8_t> stream_tiles(const TileWork& work, const TileRange& tiles);

}  // namespace shard
