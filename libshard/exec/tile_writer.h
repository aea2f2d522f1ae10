/// \file
/// Writes boxes of tiles to the files of the target. Inside libshard/exec only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "libshard/exec/framing.h"
#include "libshard/exec/piece_reader.h"
#include "libshard/exec/runs.h"
#include "libshard/exec/tile_work.h"

namespace shard {

/// Calls `each` with every run of a target piece that takes `box`: where it begins in the storage, in bytes, and in the
/// box, in elements, and how many elements it has.
template <class Each>
void for_each_run(const Unit& unit, const Piece& piece, const BufferBox& box, const Each& each) {
  const std::int64_t to_bytes = element_bytes(unit.to);
  const std::int64_t first = piece.first + distance(piece.offsets.begin(), box.offsets.data(), piece.strides.span());
  walk_runs(box.sizes, piece.strides.span(), box.strides,
            [&](std::int64_t in_file, std::int64_t in_box, std::int64_t elements) {
              each((first + in_file) * to_bytes, in_box, elements);
            });
}

/// Adds a run of what was written to a tile's record.
void count(TileRecord& record, const CrcRun& run);

/// Threads: one each.
class TileWriter {
 public:
  explicit TileWriter(const TileWork& work);
  /// Writes the box that a target piece wants; its elements are of dtype `held`, and converted where that is not the
  /// unit's own. \param staging  takes elements that are converted; may be empty where none are
  /// \param record  of the tile; with a log it counts what is written
  void write(const Unit& unit, const Piece& piece, const BufferBox& box, DType held, std::span<std::byte> staging,
             TileRecord& record);
  /// Where the elements of such a box shall lie in memory, if a target keeps them there packed in the box's order and
  /// nothing else is to be made of them; else null. The box then counts as written.
  std::byte* find_in_memory(const Unit& unit, const Piece& piece, const BufferBox& box, DType held);
  /// To be called after the boxes of a tile.
  void flush();

 private:
  void put_cast(const Unit& unit, std::uint32_t storage, std::int64_t offset, const std::byte* data,
                std::int64_t elements, std::span<std::byte> staging, TileRecord& record);
  void put(std::uint32_t storage, std::int64_t offset, const std::byte* data, std::int64_t bytes, TileRecord& record);
  void put_framed(std::uint32_t storage, std::span<const std::byte> bytes, TileRecord& record);

  const TileWork& work_;
  std::optional<FramedWrites> framed_;
};

}  // namespace shard
