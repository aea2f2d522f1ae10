#include "libshard/plan/overlaps.h"

#include <algorithm>
#include <vector>

#include "libshard/core/sort_unique.h"

namespace shard {

namespace {

/// The first dimension in which sorted pieces differ. In all dimensions before it, the pieces have equal offsets.
int first_cut(std::span<const Piece> pieces) {
  const Piece& first = pieces.front();
  const Piece& last = pieces.back();
  int d = 0;
  while (d < first.offsets.size() && first.offsets[d] == last.offsets[d]) ++d;
  return d;
}

bool overlap(const Piece& a, const Piece& b) {
  for (int d = 0; d < a.offsets.size(); ++d) {
    if (a.offsets[d] >= b.offsets[d] + b.sizes[d] || b.offsets[d] >= a.offsets[d] + a.sizes[d]) return false;
  }
  return true;
}

/// The distinct offsets of the pieces in each dimension if the pieces form a grid, otherwise nothing.
std::vector<std::vector<std::int64_t>> grid_of(std::span<const Piece> pieces) {
  std::vector<std::vector<std::int64_t>> begins(static_cast<std::size_t>(pieces.front().offsets.size()));
  std::size_t cells = 1;
  for (std::size_t d = 0; d < begins.size(); ++d) {
    for (const Piece& piece : pieces) begins[d].push_back(piece.offsets[static_cast<int>(d)]);
    sort_unique(begins[d]);
    cells *= begins[d].size();
    if (cells > pieces.size()) return {};
  }
  return begins;  // Pieces do not overlap, so if there are as many pieces as cells, each cell is one piece.
}

std::int64_t cells_overlapped(const std::vector<std::vector<std::int64_t>>& begins, const Piece& piece) {
  std::int64_t cells = 1;
  // Counts the cells that the piece overlaps along `d`: the cell that contains its first position, and each cell that
  // begins within it.
  for (std::size_t d = 0; d < begins.size(); ++d) {
    const auto dim = static_cast<int>(d);
    const auto first = std::ranges::upper_bound(begins[d], piece.offsets[dim]);
    const auto last = std::ranges::lower_bound(begins[d], piece.offsets[dim] + piece.sizes[dim]);
    cells *= last - first + 1;
  }
  return cells;
}

}  // namespace

void set_running_ends(std::span<Piece> pieces) {
  if (pieces.empty()) return;
  const int d = first_cut(pieces);
  // There is only one box, or replicas of one, so there is nothing to search.
  if (d == pieces.front().offsets.size()) return;
  std::int64_t end = 0;
  for (Piece& piece : pieces) {
    end = std::max(end, piece.offsets[d] + piece.sizes[d]);
    piece.running_end = end;
  }
}

std::pair<std::uint32_t, std::uint32_t> candidates(std::span<const Piece> pieces, const Box& box) {
  const auto count = static_cast<std::uint32_t>(pieces.size());
  if (pieces.size() < 2) return {0, count};
  const int d = first_cut(pieces);
  if (d == box.dims) return {0, count};
  const std::int64_t begin = box.offset[static_cast<std::size_t>(d)];
  const std::int64_t end = begin + box.size[static_cast<std::size_t>(d)];
  // Pieces before `first` end before the box begins. Pieces from `last` on begin after the box ends.
  const auto first =
      std::ranges::partition_point(pieces, [&](const Piece& piece) { return piece.running_end <= begin; });
  const auto last =
      std::partition_point(first, pieces.end(), [&](const Piece& piece) { return piece.offsets[d] < end; });
  return {static_cast<std::uint32_t>(first - pieces.begin()), static_cast<std::uint32_t>(last - pieces.begin())};
}

std::int64_t count_overlaps(std::span<const Piece> from, std::span<const Piece> to) {
  if (from.size() == 1) return static_cast<std::int64_t>(to.size());
  if (to.size() == 1) return static_cast<std::int64_t>(from.size());
  const std::vector<std::vector<std::int64_t>> grid = grid_of(from);
  std::int64_t pairs = 0;
  for (const Piece& piece : to) {
    if (!grid.empty()) {
      pairs += cells_overlapped(grid, piece);
      continue;
    }
    const auto [first, last] = candidates(from, Box(piece.offsets, piece.sizes));
    pairs += std::count_if(from.begin() + first, from.begin() + last,
                           [&](const Piece& each) { return overlap(each, piece); });
  }
  return pairs;
}

}  // namespace shard
