/// \file
/// What target pieces want of a tile, as boxes in one buffer. Inside libshard/exec only.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "libshard/exec/piece_reader.h"
#include "libshard/plan/plan.h"

namespace shard {

/// Each box is packed in the order of its target's strides, so that a write takes long runs. Replicas want the same
/// elements and share one box. Invariant: wanted() is in the order of the target pieces, and its boxes rise by 0 (a
/// replica, whose box is that of the piece before it) or by 1. So what a range of target pieces wants is a range of
/// boxes.
class TileBoxes {
 public:
  /// A target piece that overlaps the tile.
  struct Wanted {
    std::uint32_t piece;  ///< Into the unit's target pieces.
    std::uint32_t box;    ///< Into boxes().
  };

  /// Begins anew, with the part of a unit in `tile`.
  void lay_out(std::span<const Piece> to, const Box& tile);
  /// Of all boxes.
  std::int64_t elements() const { return elements_; }
  /// Where the first box begins; the others follow it without gaps.
  void place(std::byte* data, std::int64_t element_bytes);

  std::span<const Wanted> wanted() const { return wanted_; }
  std::span<const BufferBox> boxes() const { return boxes_; }
  const BufferBox& box(const Wanted& wanted) const { return boxes_[wanted.box]; }
  /// Those that target pieces may want of a box of the unit.
  std::span<const BufferBox> boxes_for(std::span<const Piece> to, const Box& box) const;

 private:
  BufferBox packed_box(const Piece& piece, const Box& box);

  std::vector<BufferBox> boxes_;
  std::vector<std::int64_t> begins_;   ///< Where each box begins in the buffer, in elements.
  std::vector<std::int64_t> numbers_;  ///< Offsets, sizes and strides of the boxes.
  std::vector<Wanted> wanted_;
  std::int64_t elements_ = 0;
};

}  // namespace shard
