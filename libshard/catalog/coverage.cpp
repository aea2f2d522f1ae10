#include "libshard/catalog/coverage.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <optional>
#include <vector>

#include "libshard/core/box.h"
#include "libshard/core/error.h"

namespace shard {

namespace {

constexpr std::size_t kMaxCutDims = 12;
constexpr std::size_t kMaxCorners = std::size_t{1} << 28;

/// The boxes to check: without empty ones, equal ones once. Equal boxes are neighbours as equal offsets are; of those
/// only the first is compared with, since two boxes of different sizes at one place overlap and will be found so.
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

std::vector<int> cut_dims(Dims shape, const std::vector<const Chunk*>& boxes) {
  std::vector<int> cut;
  for (int d = 0; d < shape.size(); ++d) {
    const auto is_cut = [&](const Chunk* box) { return box->sizes[d] != shape[d]; };
    if (std::ranges::any_of(boxes, is_cut)) cut.push_back(d);
  }
  return cut;
}

bool contains(const Chunk& box, std::span<const std::int64_t> element) {
  for (int d = 0; d < box.offsets.size(); ++d) {
    const std::int64_t inner = element[static_cast<std::size_t>(d)] - box.offsets[d];
    if (inner < 0 || inner >= box.sizes[d]) return false;
  }
  return true;
}

Error gap(std::string_view tensor, Dims shape, std::span<const std::int64_t> element) {
  return Error(ErrorCode::kCorruption, fmt::format("tensor '{}': no chunk holds element {} of {}", tensor,
                                                   to_string(element), to_string(shape)))
      .of_tensor(tensor)
      .of_kind(FindingKind::kGap)
      .because("the stored chunks do not cover the tensor")
      .expected("every element stored once")
      .found(fmt::format("a gap at {}", to_string(element)));
}

Error overlap(std::string_view tensor, const std::vector<const Chunk*>& boxes, std::span<const std::int64_t> element) {
  std::vector<std::string> holders;
  for (const Chunk* box : boxes) {
    if (holders.size() < 2 && contains(*box, element)) holders.push_back(to_string(Box(box->offsets, box->sizes)));
  }
  return Error(ErrorCode::kCorruption, fmt::format("tensor '{}': chunks {} both hold element {}", tensor,
                                                   fmt::join(holders, " and "), to_string(element)))
      .of_tensor(tensor)
      .of_kind(FindingKind::kOverlap)
      .because("they overlap without being equal")
      .expected("every element stored once")
      .found(fmt::format("an overlap at {}", to_string(element)));
}

/// Only `dim` is cut: sorted boxes must follow one another. Invariant: the boxes so far cover [0, reached) once.
std::optional<Error> check_intervals(std::string_view tensor, Dims shape, const std::vector<const Chunk*>& boxes,
                                     int dim) {
  std::vector<std::int64_t> element(static_cast<std::size_t>(shape.size()));
  std::int64_t& reached = element[static_cast<std::size_t>(dim)];
  for (const Chunk* box : boxes) {
    if (box->offsets[dim] > reached) return gap(tensor, shape, element);
    if (box->offsets[dim] < reached) {
      reached = box->offsets[dim];
      return overlap(tensor, boxes, element);
    }
    reached += box->sizes[dim];
  }
  if (reached < shape[dim]) return gap(tensor, shape, element);
  return std::nullopt;
}

/// Corner number `upper` of box number `box`: bit k says that dimension cut[k] is at the box's end, not its begin.
struct Corner {
  std::uint32_t box;
  std::uint32_t upper;
};

class CornerSum {
 public:
  CornerSum(Dims shape, const std::vector<const Chunk*>& boxes, const std::vector<int>& cut)
      : shape_(shape), boxes_(boxes), cut_(cut) {
    for (std::uint32_t box = 0; box < boxes.size(); ++box) add_corners(box);
    const auto less = [this](const Corner& a, const Corner& b) { return compare(a, b) < 0; };
    std::ranges::sort(corners_, less);
  }

  /// The first place whose sum differs from that of the whole tensor (1 at the origin, else 0), and by how much.
  /// Nothing differs: 0.
  int first_difference(std::span<std::int64_t> element) const {
    const bool origin = !corners_.empty() && is_origin(corners_[0]);
    if (!origin) return -1;  // `element` is the origin.
    for (std::size_t i = 0, end = 0; i < corners_.size(); i = end) {
      int sum = i == 0 ? -1 : 0;
      for (end = i; end < corners_.size() && compare(corners_[i], corners_[end]) == 0; ++end) {
        sum += std::popcount(corners_[end].upper) % 2 == 0 ? 1 : -1;
      }
      if (sum == 0) continue;
      for (std::size_t k = 0; k < cut_.size(); ++k) {
        element[static_cast<std::size_t>(cut_[k])] = coordinate(corners_[i], k);
      }
      return sum;
    }
    return 0;
  }

 private:
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
  bool is_origin(const Corner& corner) const {
    for (std::size_t k = 0; k < cut_.size(); ++k) {
      if (coordinate(corner, k) != 0) return false;
    }
    return true;
  }
  /// Corners at the tensor's end lie outside it and say nothing about elements inside.
  void add_corners(std::uint32_t box) {
    std::uint32_t at_end = 0;
    for (std::size_t k = 0; k < cut_.size(); ++k) {
      const int d = cut_[k];
      if (boxes_[box]->offsets[d] + boxes_[box]->sizes[d] == shape_[d]) at_end |= 1U << k;
    }
    for (std::uint32_t upper = 0; upper < 1U << cut_.size(); ++upper) {
      if ((upper & at_end) == 0) corners_.push_back({box, upper});
    }
  }

  Dims shape_;
  const std::vector<const Chunk*>& boxes_;
  const std::vector<int>& cut_;
  std::vector<Corner> corners_;
};

std::optional<Error> find_fault(std::string_view tensor, Dims shape, std::span<const Chunk> chunks) {
  if (is_empty(shape)) return std::nullopt;
  const std::vector<const Chunk*> boxes = distinct_boxes(chunks);
  std::vector<std::int64_t> element(static_cast<std::size_t>(shape.size()));
  if (boxes.empty()) return gap(tensor, shape, element);
  const std::vector<int> cut = cut_dims(shape, boxes);
  if (cut.empty()) return std::nullopt;  // All are the whole tensor, so they are one box.
  if (cut.size() == 1) return check_intervals(tensor, shape, boxes, cut[0]);
  if (cut.size() > kMaxCutDims || boxes.size() > kMaxCorners >> cut.size()) {
    throw Error(ErrorCode::kUnsupported,
                fmt::format("tensor '{}' is cut along {} dimensions into {} chunks", tensor, cut.size(), boxes.size()))
        .of_tensor(tensor)
        .because(
            fmt::format("coverage is checked for up to {} cut dimensions and {} corners", kMaxCutDims, kMaxCorners));
  }
  const int difference = CornerSum(shape, boxes, cut).first_difference(element);
  if (difference < 0) return gap(tensor, shape, element);
  if (difference > 0) return overlap(tensor, boxes, element);
  return std::nullopt;
}

}  // namespace

bool check_coverage(std::string_view tensor, Dims shape, std::span<const Chunk> chunks, Findings& findings) {
  const std::optional<Error> fault = find_fault(tensor, shape, chunks);
  if (fault) findings.report(*fault);
  return !fault;
}

}  // namespace shard
