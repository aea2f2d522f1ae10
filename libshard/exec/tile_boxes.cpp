#include "libshard/exec/tile_boxes.h"

#include <algorithm>

#include "libshard/exec/runs.h"
#include "libshard/plan/overlaps.h"

namespace shard {

namespace {

bool is_replica_of(const Piece& a, const Piece& b) { return a.offsets == b.offsets && a.sizes == b.sizes; }

}  // namespace

void TileBoxes::lay_out(std::span<const Piece> to, const Box& tile) {
  boxes_.clear(), begins_.clear(), wanted_.clear(), numbers_.clear();
  const auto [first, last] = candidates(to, tile);
  numbers_.reserve((last - first) * static_cast<std::size_t>(tile.dims) * 3);  // Boxes point into it.
  elements_ = 0;
  for (std::uint32_t i = first; i < last; ++i) {
    const Box common = intersect(tile, Box(to[i].offsets, to[i].sizes));
    if (common.empty()) continue;
    // Pieces are sorted, so a replica directly follows the piece that it equals, and shares that piece's box.
    const bool is_replica = !wanted_.empty() && is_replica_of(to[wanted_.back().piece], to[i]);
    if (!is_replica) {
      boxes_.push_back(packed_box(to[i], common));
      begins_.push_back(elements_);
      elements_ += common.numel();
    }
    wanted_.push_back({i, static_cast<std::uint32_t>(boxes_.size() - 1)});
  }
}

void TileBoxes::place(std::byte* data, std::int64_t element_bytes) {
  for (std::size_t i = 0; i < boxes_.size(); ++i) boxes_[i].data = data + begins_[i] * element_bytes;
}

/// `box` packed without gaps in the order of the piece's strides. Its data pointer is set later.
BufferBox TileBoxes::packed_box(const Piece& piece, const Box& box) {
  const auto dims = static_cast<std::size_t>(box.dims);
  const auto keep = [&](const auto& values) {
    const std::size_t begin = numbers_.size();
    numbers_.insert(numbers_.end(), values.begin(), values.begin() + static_cast<std::ptrdiff_t>(dims));
    return std::span<const std::int64_t>(numbers_).subspan(begin, dims);
  };
  BufferBox packed;
  packed.offsets = keep(box.offset);
  packed.sizes = keep(box.size);
  Numbers strides;
  pack(packed.sizes, piece.strides.span(), strides);
  packed.strides = keep(strides);
  return packed;
}

std::span<const BufferBox> TileBoxes::boxes_for(std::span<const Piece> to, const Box& box) const {
  // The pieces that may overlap are a range, so their boxes are a range too. Pieces outside of the tile have no entry
  // in wanted_.
  const auto [begin, end] = candidates(to, box);
  const auto low = std::ranges::lower_bound(wanted_, begin, {}, &Wanted::piece);
  const auto high = std::ranges::lower_bound(low, wanted_.end(), end, {}, &Wanted::piece);
  if (low == high) return {};
  const std::size_t first = low->box, last = std::prev(high)->box;
  return std::span(boxes_).subspan(first, last - first + 1);
}

}  // namespace shard
