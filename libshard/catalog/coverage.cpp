#include "libshard/catalog/coverage.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <optional>
#include <vector>

#include "libshard/core/box.h"
#include "libshard/core/error.h"

namespace shard {

namespace {

constexpr int kMaxLevels = 32;  // Nested straight cuts. A grid needs one level per dimension that is cut.
constexpr std::size_t kMaxCornerDims = 6;

/// The boxes to check: without empty ones, and each set of equal boxes once. Equal boxes are adjacent, because equal
/// offsets are. Each box is compared only with the first one at its offsets, because two boxes of different sizes with
/// equal offsets overlap, and are found later.
std::vector<const Chunk*> distinct_boxes(std::span<const Chunk> chunks) {
  std::vector<const Chunk*> boxes;
  boxes.reserve(chunks.size());
  for (const Chunk& chunk : chunks) {
    if (is_empty(chunk.sizes)) continue;
    const bool replica = !boxes.empty() && boxes.back()->offsets == chunk.offsets && boxes.back()->sizes == chunk.sizes;
    if (!replica) boxes.push_back(&chunk);
  }
  return boxes;
}

std::int64_t box_end(const Chunk& box, int dim) { return box.offsets[dim] + box.sizes[dim]; }

bool contains(const Chunk& box, std::span<const std::int64_t> element) {
  for (int d = 0; d < box.offsets.size(); ++d) {
    const std::int64_t inner = element[static_cast<std::size_t>(d)] - box.offsets[d];
    if (inner < 0 || inner >= box.sizes[d]) return false;
  }
  return true;
}

Error gap(std::string_view tensor, Dims shape, std::span<const std::int64_t> element) {
  return Error(ErrorCode::kCorruption, fmt::format("tensor '{}': no chunk covers element {} of {}", tensor,
                                                   to_string(element), to_string(shape)))
      .of_tensor(tensor)
      .of_kind(FindingKind::kGap)
      .because("the chunks do not cover the whole tensor")
      .expected("every element stored once")
      .found(fmt::format("a gap at {}", to_string(element)));
}

/// The error for two overlapping boxes. It names the first two that contain the element.
Error overlap(std::string_view tensor, const std::vector<const Chunk*>& boxes, std::span<const std::int64_t> element) {
  std::vector<std::string> holders;
  for (const Chunk* box : boxes) {
    if (holders.size() < 2 && contains(*box, element)) holders.push_back(to_string(Box(box->offsets, box->sizes)));
  }
  return Error(ErrorCode::kCorruption, fmt::format("tensor '{}': chunks {} overlap at element {}", tensor,
                                                   fmt::join(holders, " and "), to_string(element)))
      .of_tensor(tensor)
      .of_kind(FindingKind::kOverlap)
      .because("they overlap but are not replicas of each other")
      .expected("every element stored once")
      .found(fmt::format("an overlap at {}", to_string(element)));
}

/// An element that is not covered exactly once.
struct Fault {
  std::vector<std::int64_t> element;
  bool is_gap;
};

/// A box of elements that the boxes inside it should cover.
struct Region {
  std::vector<std::int64_t> begin, end;
};

/// Corner number `upper` of box number `box`. If bit k is set, the corner is at the box's end in dimension cut[k],
/// otherwise at its begin.
struct Corner {
  std::uint32_t box;
  std::uint32_t upper;
};

/// The corners of a region's boxes, in order.
///
/// Method: inclusion and exclusion. A box [b, e) covers the element x as often as its signed corners at or before x add
/// up: +1 for a corner with an even number of upper coordinates, -1 for an odd one. So all boxes together cover x as
/// often as the sum of all their corners at or before x (in every dimension). They cover each element of the region
/// once if and only if the corners at each point add up to those of the region itself: +1 at its begin, 0 elsewhere
/// inside. Cost: 2^d corners per box for d dimensions in `cut`, and n log n to sort them.
///
/// `cut` has the dimensions in which a box is smaller than the region.
/// \pre `cut` has at most 31 dimensions
class CornerSum {
 public:
  CornerSum(const Region& region, std::span<const Chunk* const> boxes, const std::vector<int>& cut)
      : region_(region), boxes_(boxes), cut_(cut) {
    for (std::uint32_t box = 0; box < boxes.size(); ++box) add_corners(box);
    std::ranges::sort(corners_, [this](const Corner& a, const Corner& b) { return compare(a, b) < 0; });
  }

  /// Invariant: the sums at all corners before `i` are those of the region: 1 at its begin and 0 elsewhere. So every
  /// element before the corner is covered once.
  std::optional<Fault> first_fault() const {
    const bool begins = !corners_.empty() && is_begin(corners_[0]);
    if (!begins) return Fault{region_.begin, true};
    for (std::size_t i = 0, end = 0; i < corners_.size(); i = end) {
      int sum = i == 0 ? -1 : 0;
      for (end = i; end < corners_.size() && compare(corners_[i], corners_[end]) == 0; ++end) {
        sum += std::popcount(corners_[end].upper) % 2 == 0 ? 1 : -1;
      }
      if (sum == 0) continue;
      Fault fault{region_.begin, sum < 0};
      for (std::size_t k = 0; k < cut_.size(); ++k) fault.element[dim(k)] = coordinate(corners_[i], k);
      return fault;
    }
    return std::nullopt;
  }

 private:
  std::size_t dim(std::size_t k) const { return static_cast<std::size_t>(cut_[k]); }
  std::int64_t coordinate(const Corner& corner, std::size_t k) const {
    const Chunk& box = *boxes_[corner.box];
    return box.offsets[cut_[k]] + ((corner.upper >> k & 1) != 0 ? box.sizes[cut_[k]] : 0);
  }
  int compare(const Corner& a, const Corner& b) const {
    for (std::size_t k = 0; k < cut_.size(); ++k) {
      const std::int64_t x = coordinate(a, k), y = coordinate(b, k);
      if (x != y) return x < y ? -1 : 1;
    }
    return 0;
  }
  bool is_begin(const Corner& corner) const {
    for (std::size_t k = 0; k < cut_.size(); ++k) {
      if (coordinate(corner, k) != region_.begin[dim(k)]) return false;
    }
    return true;
  }
  /// Corners at the region's end are outside it, and do not affect elements inside.
  void add_corners(std::uint32_t box) {
    std::uint32_t at_end = 0;
    for (std::size_t k = 0; k < cut_.size(); ++k) {
      if (box_end(*boxes_[box], cut_[k]) == region_.end[dim(k)]) at_end |= 1U << k;
    }
    for (std::uint32_t upper = 0; upper < 1U << cut_.size(); ++upper) {
      if ((upper & at_end) == 0) corners_.push_back({box, upper});
    }
  }

  const Region& region_;
  std::span<const Chunk* const> boxes_;
  const std::vector<int>& cut_;
  std::vector<Corner> corners_;
};

/// Checks a region, and recursively the slabs into which straight cuts divide it.
class RegionCheck {
 public:
  RegionCheck(std::string_view tensor, Dims shape)
      : tensor_(tensor), region_{std::vector<std::int64_t>(shape.span().size()), {shape.begin(), shape.end()}} {}

  /// The first fault in row-major order, or nothing if the boxes cover the region. Reorders `boxes`.
  std::optional<Fault> first_fault(std::span<const Chunk*> boxes) {
    check(boxes, 0);
    return first_;
  }

 private:
  /// Tries straight cuts first, because they divide a grid, the usual case, in O(n log n) per level, and need no
  /// corners.
  void check(std::span<const Chunk*> boxes, int level) {
    if (level < kMaxLevels) {
      for (int d = 0; d < dims(); ++d) {
        if (cut(boxes, d, level)) return;
      }
      if (boxes.size() == 1) return;  // There is no cut and no gap along any dimension, so the box is the whole region.
    }
    check_corners(boxes);
  }

  /// Cuts the region along `dim` into slabs, and checks them. \returns false if one slab is the whole region.
  /// Invariant: elements of the region before `reached` are in slabs that were checked, or in gaps that were recorded.
  bool cut(std::span<const Chunk*> boxes, int dim, int level) {
    const auto d = static_cast<std::size_t>(dim);
    const auto begin_of = [dim](const Chunk* box) { return box->offsets[dim]; };
    if (!std::ranges::is_sorted(boxes, {}, begin_of)) std::ranges::sort(boxes, {}, begin_of);
    const std::int64_t begin = region_.begin[d], end = region_.end[d];
    std::int64_t reached = begin;
    for (std::size_t i = 0, next = 0; i < boxes.size(); i = next) {
      const std::int64_t slab_begin = begin_of(boxes[i]);
      std::int64_t slab_end = box_end(*boxes[i], dim);
      for (next = i + 1; next < boxes.size() && begin_of(boxes[next]) < slab_end; ++next) {
        slab_end = std::max(slab_end, box_end(*boxes[next], dim));
      }
      if (next - i == boxes.size() && slab_begin == begin && slab_end == end) return false;
      if (reached < slab_begin) note_gap(d, reached);
      region_.begin[d] = slab_begin;
      region_.end[d] = slab_end;
      check(boxes.subspan(i, next - i), level + 1);
      region_.begin[d] = begin;
      region_.end[d] = end;
      reached = slab_end;
    }
    if (reached < end) note_gap(d, reached);
    return true;
  }

  void check_corners(std::span<const Chunk* const> boxes) {
    std::vector<int> cut;
    for (int dim = 0; dim < dims(); ++dim) {
      const auto d = static_cast<std::size_t>(dim);
      const auto is_smaller = [&](const Chunk* box) {
        return box->offsets[dim] != region_.begin[d] || box_end(*box, dim) != region_.end[d];
      };
      if (std::ranges::any_of(boxes, is_smaller)) cut.push_back(dim);
    }
    if (cut.size() > kMaxCornerDims) throw too_entangled(boxes.size(), cut.size());
    if (const std::optional<Fault> fault = CornerSum(region_, boxes, cut).first_fault()) note(*fault);
  }

  Error too_entangled(std::size_t boxes, std::size_t dims) const {
    return Error(
               ErrorCode::kUnsupported,
               fmt::format("cannot check the chunks of tensor '{}': no straight cut separates {} of them, which differ "
                           "along {} dimensions",
                           tensor_, boxes, dims))
        .of_tensor(tensor_)
        .because(fmt::format("coverage can be checked if they differ along at most {} dimensions", kMaxCornerDims));
  }

  void note_gap(std::size_t d, std::int64_t at) {
    Fault gap{region_.begin, true};
    gap.element[d] = at;
    note(gap);
  }
  void note(const Fault& fault) {
    if (!first_ || fault.element < first_->element) first_ = fault;
  }
  int dims() const { return static_cast<int>(region_.begin.size()); }

  std::string_view tensor_;
  Region region_;  ///< The region that is being checked.
  std::optional<Fault> first_;
};

std::optional<Error> find_fault(std::string_view tensor, Dims shape, std::span<const Chunk> chunks) {
  if (is_empty(shape)) return std::nullopt;
  const std::vector<const Chunk*> boxes = distinct_boxes(chunks);
  if (boxes.empty()) return gap(tensor, shape, std::vector<std::int64_t>(shape.span().size()));
  std::vector<const Chunk*> ordered = boxes;
  const std::optional<Fault> fault = RegionCheck(tensor, shape).first_fault(ordered);
  if (!fault) return std::nullopt;
  return fault->is_gap ? gap(tensor, shape, fault->element) : overlap(tensor, boxes, fault->element);
}

}  // namespace

bool check_coverage(std::string_view tensor, Dims shape, std::span<const Chunk> chunks, Findings& findings) {
  const std::optional<Error> fault = find_fault(tensor, shape, chunks);
  if (fault) findings.report(*fault);
  return !fault;
}

}  // namespace shard
