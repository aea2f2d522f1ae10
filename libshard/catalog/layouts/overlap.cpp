#include "libshard/catalog/layouts/overlap.h"

#include <algorithm>
#include <vector>

#include "libshard/core/box.h"

namespace shard {

namespace {

using Boxes = std::vector<const BoxView*>;
using Pair = std::optional<std::pair<const BoxView*, const BoxView*>>;

class OverlapSearch {
 public:
  /// `dims` are those in which boxes differ. In all others all boxes are the same.
  explicit OverlapSearch(std::vector<std::size_t> dims) : dims_(std::move(dims)) {}

  Pair find(Boxes boxes) const {
    std::ranges::sort(boxes, [this](const auto* a, const auto* b) { return comes_before(a, b); });
    return find(boxes, boxes, dims_.size() - 1);
  }

 private:
  std::int64_t begin(const BoxView* box, std::size_t level) const { return box->offsets[dims_[level]]; }
  /// Saturates, so that an end past 63 bits does not hide an overlap.
  std::int64_t end(const BoxView* box, std::size_t level) const {
    std::int64_t sum = 0;
    const std::int64_t size = box->sizes[dims_[level]];
    return __builtin_add_overflow(begin(box, level), size, &sum) ? INT64_MAX : sum;
  }
  /// The order of the sweep. Boxes are in one list, so their addresses can be compared.
  bool comes_before(const BoxView* a, const BoxView* b) const {
    return std::pair(begin(a, 0), a) < std::pair(begin(b, 0), b);
  }

  /// Finds a box in `intervals` that contains the begin of a box in `points` in dimension `level` and intersects it in
  /// the lower dimensions. Both lists are in the order of the sweep, and their boxes already intersect in the higher
  /// dimensions.
  Pair find(const Boxes& intervals, const Boxes& points, std::size_t level) const {
    if (intervals.empty() || points.empty()) return std::nullopt;
    if (level == 0) return sweep(intervals, points);
    std::vector<std::int64_t> begins;
    for (const auto* point : points) begins.push_back(begin(point, level));
    const auto [first, last] = std::ranges::minmax(begins);
    Boxes covering, partial;
    for (const auto* box : intervals) {
      if (end(box, level) <= first || begin(box, level) > last) continue;
      (begin(box, level) <= first && end(box, level) > last ? covering : partial).push_back(box);
    }
    if (const Pair pair = find(covering, points, level - 1)) return pair;
    if (const Pair pair = find(points, covering, level - 1)) return pair;
    return partial.empty() ? std::nullopt : find_in_halves(partial, points, level, middle(begins, first));
  }

  Pair find_in_halves(const Boxes& intervals, const Boxes& points, std::size_t level, std::int64_t middle) const {
    Boxes low, high;
    for (const auto* point : points) (begin(point, level) < middle ? low : high).push_back(point);
    if (const Pair pair = find(intervals, low, level)) return pair;
    return find(intervals, high, level);
  }

  /// The median, or the next number if that is the smallest, so that neither half is empty. \pre not all are equal
  static std::int64_t middle(std::vector<std::int64_t>& numbers, std::int64_t first) {
    const auto half = numbers.begin() + static_cast<std::ptrdiff_t>(numbers.size() / 2);
    std::ranges::nth_element(numbers, half);
    if (*half != first) return *half;
    const auto rest = std::ranges::partition(numbers, [first](std::int64_t number) { return number == first; });
    return std::ranges::min(rest);
  }

  /// Among the intervals that begin before a point, the one that ends last decides.
  Pair sweep(const Boxes& intervals, const Boxes& points) const {
    const BoxView* longest = nullptr;
    auto next = intervals.begin();
    for (const auto* point : points) {
      for (; next != intervals.end() && comes_before(*next, point); ++next) {
        if (longest == nullptr || end(*next, 0) > end(longest, 0)) longest = *next;
      }
      if (longest != nullptr && end(longest, 0) > begin(point, 0)) return std::pair(longest, point);
    }
    return std::nullopt;
  }

  std::vector<std::size_t> dims_;
};

/// The dimensions in which any box differs from the first one.
std::vector<std::size_t> differing_dims(const Boxes& boxes) {
  std::vector<std::size_t> dims;
  for (std::size_t d = 0; d < boxes.front()->sizes.size(); ++d) {
    const auto differs = [&](const BoxView* box) {
      return box->offsets[d] != boxes.front()->offsets[d] || box->sizes[d] != boxes.front()->sizes[d];
    };
    if (std::ranges::any_of(boxes, differs)) dims.push_back(d);
  }
  return dims;
}

}  // namespace

std::optional<std::pair<std::size_t, std::size_t>> find_overlap(std::span<const BoxView> boxes) {
  Boxes full;
  for (const BoxView& box : boxes) {
    if (!is_empty(box.sizes)) full.push_back(&box);
  }
  if (full.size() < 2) return std::nullopt;
  std::vector<std::size_t> dims = differing_dims(full);
  const Pair pair = dims.empty() ? Pair(std::pair(full[0], full[1])) : OverlapSearch(std::move(dims)).find(full);
  if (!pair.has_value()) return std::nullopt;
  const auto [one, other] = std::minmax(pair->first, pair->second);
  return std::pair(static_cast<std::size_t>(one - boxes.data()), static_cast<std::size_t>(other - boxes.data()));
}

}  // namespace shard
