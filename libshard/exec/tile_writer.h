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

/// Calls `each` with every run of a target piece that receives `box`: its begin in the storage (in bytes), its begin in
/// the box (in elements), and its number of elements.
template <class Each>
void for_each_run(const Unit& unit, const Piece& piece, const BufferBox& box, const Each& each) {
  const std::int64_t to_bytes = element_bytes(unit.to);
  const std::int64_t first = piece.first + distance(piece.offsets.begin(), box.offsets.data(), piece.strides.span());
  walk_runs(box.sizes, piece.strides.span(), box.strides,
            [&](std::int64_t in_file, std::int64_t in_box, std::int64_t elements) {
              each((first + in_file) * to_bytes, in_box, elements);
            });
}

/// Adds a written run to a tile's record.
void count(TileRecord& record, const CrcRun& run);

/// Threads: each thread needs its own.
class TileWriter {
 public:
  explicit TileWriter(const TileWork& work);
  /// Writes the box that a target piece needs. Its elements have the dtype `held`, and are converted if the unit's
  /// dtype differs. \param staging  memory for converted elements; may be empty if nothing is converted
  /// \param record  the tile's record. With a log, it counts everything that is written
  void write(const Unit& unit, const Piece& piece, const BufferBox& box, DType held, std::span<std::byte> staging,
             TileRecord& record);
  /// The address in the target's memory for the elements of such a box, if the target keeps them packed in the box's
  /// order and no other step needs them. Otherwise null. If the result is not null, the box counts as written.
  std::byte* find_in_memory(const Unit& unit, const Piece& piece, const BufferBox& box, DType held);
  /// Writes bytes at an offset of a storage, which is part of a tile.
  void put(std::uint32_t storage, std::int64_t offset, const std::byte* data, std::int64_t bytes, TileRecord& record);
  /// Call it after the boxes of a tile.
  void flush();

 private:
  void put_cast(const Unit& unit, std::uint32_t storage, std::int64_t offset, const std::byte* data,
                std::int64_t elements, std::span<std::byte> staging, TileRecord& record);
  void put_framed(std::uint32_t storage, std::span<const std::byte> bytes, TileRecord& record);

  const TileWork& work_;
  std::optional<FramedWrites> framed_;
};

}  // namespace shard
