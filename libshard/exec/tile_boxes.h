/// \file TileBoxes: the parts of a tile that target pieces need, as boxes in one buffer. Inside libshard/exec only.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "libshard/exec/piece_reader.h"
#include "libshard/plan/plan.h"

namespace shard {

/// Each box is packed in the order of its target's strides, so that writes have long runs. Replicas need the same
/// elements and share one box.
///
/// Invariant: wanted() is in the order of the target pieces. The box number of each entry is that of the entry before
/// it (for a replica) or one more. Therefore a range of target pieces corresponds to a range of boxes.
class TileBoxes {
 public:
  /// A target piece that overlaps the tile.
  struct Wanted {
    std::uint32_t piece;  ///< Index in the unit's target pieces.
    std::uint32_t box;    ///< Index in boxes().
  };

  /// Starts again, with the part of a unit in `tile`.
  void lay_out(std::span<const Piece> to, const Box& tile);
  /// The number of elements in all boxes.
  std::int64_t elements() const { return elements_; }
  /// Sets the address of the first box. The others follow it without gaps.
  void place(std::byte* data, std::int64_t element_bytes);

  std::span<const Wanted> wanted() const { return wanted_; }
  std::span<const BufferBox> boxes() const { return boxes_; }
  const BufferBox& box(const Wanted& wanted) const { return boxes_[wanted.box]; }
  /// The boxes of target pieces that may overlap a box of the unit.
  std::span<const BufferBox> boxes_for(std::span<const Piece> to, const Box& box) const;

 private:
  BufferBox packed_box(const Piece& piece, const Box& box);

  std::vector<BufferBox> boxes_;
  std::vector<std::int64_t> begins_;   ///< The begin of each box in the buffer, in elements.
  std::vector<std::int64_t> numbers_;  ///< The offsets, sizes and strides of the boxes.
  std::vector<Wanted> wanted_;
  std::int64_t elements_ = 0;
};

}  // namespace shard
