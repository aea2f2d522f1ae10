/// \file
/// Writes boxes of tiles to the files of the target. Inside libshard/exec only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "libshard/exec/framing.h"
#include "libshard/exec/piece_reader.h"
#include "libshard/exec/tile_work.h"

namespace shard {

/// Threads: one each.
class TileWriter {
 public:
  explicit TileWriter(const TileWork& work);
  /// Writes the box that a target piece wants; its elements are of dtype `held`, and converted where that is not the
  /// unit's own. \param staging  takes elements that are converted; may be empty where none are
  void write(const Unit& unit, const Piece& piece, const BufferBox& box, DType held, std::span<std::byte> staging);
  /// To be called after the boxes of a tile.
  void end_tile();

 private:
  void put_cast(const Unit& unit, std::uint32_t storage, std::int64_t offset, const std::byte* data,
                std::int64_t elements, std::span<std::byte> staging);
  void put(std::uint32_t storage, std::int64_t offset, const std::byte* data, std::int64_t bytes);
  void put_framed(std::uint32_t storage, std::span<const std::byte> bytes);

  const TileWork& work_;
  std::optional<FramedWrites> framed_;
};

}  // namespace shard
