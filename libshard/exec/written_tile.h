/// \file
/// Whether what an earlier run wrote of a tile is still there. Inside libshard/exec only.
#pragma once

#include <cstddef>
#include <span>

#include "libshard/exec/tile_log.h"
#include "libshard/exec/tile_work.h"

namespace shard {

/// Reads the tile back and compares it with its record. Where it is right, its checksums count as if it were copied
/// now; frames of its storages are written with the rest. \param staging  memory to read into
/// \throws Error kResource  what is there cannot be read; kInterrupted
bool is_still_written(const TileWork& work, const TileRecord& before, std::span<std::byte> staging);

}  // namespace shard
