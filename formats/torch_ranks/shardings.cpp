#include "formats/torch_ranks/shardings.h"

#include <algorithm>
#include <limits>
#include <map>

#include "libshard/core/key_text.h"

namespace shard::torch_ranks {

namespace {

constexpr std::size_t kMaxPlacedBoxes = 1 << 16;  // The largest number of boxes in the cache, about one KiB each.

std::int64_t saturating_mul(std::int64_t a, std::int64_t b) {
  std::int64_t product = 0;
  return __builtin_mul_overflow(a, b, &product) ? std::numeric_limits<std::int64_t>::max() : product;
}

/// The upper bound of the boxes of the ranks' parts by the split factors, because small files may contain any factor.
std::int64_t most_boxes(Dims shape, const Sharding& sharding) {
  std::map<int, std::int64_t> runs;
  for (const Placement& placement : sharding.placements) {
    if (placement.kind != Placement::kStridedShard) continue;
    std::int64_t& of_dim = runs.try_emplace(placement.dim, 1).first->second;
    of_dim = std::min(saturating_mul(placement.split_factor, of_dim), shape[placement.dim]);
  }
  std::int64_t boxes = mesh_size(sharding.mesh);
  for (const auto& [dim, count] : runs) boxes = saturating_mul(boxes, count);
  return boxes;
}

}  // namespace

std::uint32_t Shardings::index_of(const Sharding& sharding) {
  const auto [index, is_new] =
      known_.try_emplace(key_of(sharding), static_cast<std::uint32_t>(catalog_.shardings.size()));
  if (is_new) catalog_.shardings.push_back(sharding);
  return index;
}

const std::vector<RankPiece>& Shardings::pieces(Dims shape, const Cut& cut) {
  const std::vector<std::int64_t> order(cut.order.begin(), cut.order.end());
  const std::string key = KeyText().text(key_of(cut.sharding)).list(order).list(shape.span()).str();
  if (const std::vector<RankPiece>* known = placed_.find(key)) return *known;
  catalog_.arena->charge(Charge::kPlacedBoxes, most_boxes(shape, cut.sharding));
  std::vector<RankPiece> pieces = place(shape, cut.sharding.mesh, cut.sharding.placements, cut.order);
  for (std::size_t i = 0; i < cut.sharding.ranks.size(); ++i) pieces[i].rank = cut.sharding.ranks[i];
  if (placed_boxes_ > kMaxPlacedBoxes) {
    placed_.clear();
    placed_boxes_ = 0;
  }
  for (const RankPiece& piece : pieces) placed_boxes_ += piece.boxes.size() + 1;
  return placed_.try_emplace(key, std::move(pieces)).value;
}

bool cuts_slowest_first(const Cut& cut) {
  std::map<int, std::size_t> last;
  for (const std::size_t axis : cut.order) {
    const Placement& placement = cut.sharding.placements[axis];
    if (placement.kind == Placement::kReplicate) continue;
    const auto [entry, is_new] = last.try_emplace(placement.dim, axis);
    if (!is_new && entry->second > axis) return false;
    entry->second = axis;
  }
  return true;
}

bool is_counting(const std::vector<std::int64_t>& ranks) {
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    if (ranks[i] != static_cast<std::int64_t>(i)) return false;
  }
  return true;
}

}  // namespace shard::torch_ranks
