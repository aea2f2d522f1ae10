#include "libshard/catalog/layouts/layout.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "libshard/core/checked.h"
#include "libshard/core/error.h"

namespace shard {

namespace {

constexpr std::size_t kMaxRuns = 1 << 20;   // The limit for one dimension.
constexpr std::size_t kMaxBoxes = 1 << 20;  // The limit for one tensor, over all ranks.

struct Run {
  std::int64_t begin, end;
};
using Runs = std::vector<Run>;  // The runs of one dimension. Concatenated, they are the local dimension.

std::int64_t length(const Runs& runs) {
  return std::accumulate(runs.begin(), runs.end(), std::int64_t{0},
                         [](std::int64_t sum, const Run& run) { return sum + run.end - run.begin; });
}

void append_run(Runs& runs, Run run) {
  if (run.begin >= run.end) return;
  if (!runs.empty() && runs.back().end == run.begin) {
    runs.back().end = run.end;
  } else {
    runs.push_back(run);
  }
}

/// Appends the elements at the local positions `cut` of the concatenated `runs`. Starts with run `next`, which begins
/// at local position `position`, and advances both, so that a sequence of rising positions visits the runs once.
void append_cut(const Runs& runs, Run cut, std::size_t& next, std::int64_t& position, Runs& out) {
  while (next < runs.size()) {
    const Run& run = runs[next];
    const std::int64_t run_end = position + run.end - run.begin;
    if (cut.end <= position) return;
    append_run(out, {run.begin + std::max<std::int64_t>(0, cut.begin - position),
                     std::min(run.end, run.begin + cut.end - position)});
    if (cut.end < run_end) return;
    position = run_end;
    ++next;
  }
}

/// An axis that shards a dimension, and the rank's part on it, or of each piece if it is strided.
struct AxisCut {
  const Placement* placement = nullptr;
  DimCut numbers{};
  std::string where{};
};

std::vector<AxisCut> cuts_of(std::span<const MeshAxis> mesh, std::span<const Placement> placements) {
  std::vector<AxisCut> cuts(mesh.size());
  for (std::size_t axis = 0; axis < mesh.size(); ++axis) {
    const Placement& placement = placements[axis];
    AxisCut& cut = cuts[axis];
    cut.placement = &placement;
    cut.numbers.split = placement.kind == Placement::kShard ? placement.split : CutRule::kChunk;
    cut.numbers.parts = mesh[axis].size;
    cut.numbers.ends = placement.ends;
    cut.where = fmt::format("the axis '{}'", mesh[axis].name);
  }
  return cuts;
}

/// The share of a part in a dimension with the remaining `runs`.
///
/// Method: torch's _StridedShard._split_tensor (torch/distributed/tensor/placement_types.py), on runs instead of
/// elements. The local dimension is split into `split_factor` pieces, each piece is split into parts, and the same part
/// of every piece is concatenated. Shard is a strided shard of factor 1. Invariant: pieces rise, so `next` and
/// `position` visit the runs once. Cost: O(runs + pieces).
Runs cut_runs(const Runs& runs, const AxisCut& cut) {
  const Placement& placement = *cut.placement;
  const std::int64_t n = length(runs);
  Runs out;
  if (n == 0) {
    cut_range(n, cut.numbers, cut.where);
    return out;
  }
  const auto refuse_unless = [&](bool fits) {
    if (fits) return;
    throw Error(ErrorCode::kUnsupported,
                fmt::format("{} divides a dimension of {} into more than {} runs", to_string(placement), n, kMaxRuns));
  };
  const std::int64_t piece_size = ceil_div(n, placement.kind == Placement::kStridedShard ? placement.split_factor : 1);
  refuse_unless(ceil_div(n, piece_size) <= static_cast<std::int64_t>(kMaxRuns));
  std::size_t next = 0;
  std::int64_t position = 0;
  for (std::int64_t begin = 0; begin < n; begin += std::min(piece_size, n - begin)) {
    const DimRange part = cut_range(std::min(piece_size, n - begin), cut.numbers, cut.where);
    append_cut(runs, {begin + part.begin, begin + part.begin + part.size}, next, position, out);
    refuse_unless(out.size() <= kMaxRuns);
  }
  return out;
}

/// The dimension that a placement shards, for a tensor of `dims` dimensions, or -1.
int cut_dim(const Placement& placement, int dims) {
  if (placement.kind == Placement::kReplicate) return -1;
  const int dim = placement.dim < 0 ? placement.dim + dims : placement.dim;
  return dim >= 0 && dim < dims ? dim : -1;
}

/// Appends a box for every combination of the dimensions' runs. The last dimension varies fastest, in the order of
/// local elements.
void append_boxes(const std::vector<Runs>& runs, RankPiece& piece) {
  if (is_empty(piece.local_sizes)) return;
  const std::size_t dims = runs.size();
  std::vector<std::size_t> at(dims), counts(dims);
  std::vector<std::vector<std::int64_t>> begins(dims);  // The begin of each run in the local tensor.
  for (std::size_t d = 0; d < dims; ++d) {
    counts[d] = runs[d].size();
    std::int64_t begin = 0;
    for (const Run& run : runs[d]) begins[d].push_back(std::exchange(begin, begin + run.end - run.begin));
  }
  do {
    Box box;
    box.dims = static_cast<int>(dims);
    std::vector<std::int64_t> local(dims);
    for (std::size_t d = 0; d < dims; ++d) {
      const Run& run = runs[d][at[d]];
      box.offset[d] = run.begin;
      box.size[d] = run.end - run.begin;
      local[d] = begins[d][at[d]];
    }
    piece.boxes.push_back(box);
    piece.local_offsets.push_back(std::move(local));
  } while (next_index<std::size_t>(at, counts) >= 0);
}

/// Whether the runs of these dimensions produce at most `most` boxes. \pre no dimension is empty
bool fit(const std::vector<Runs>& runs, std::size_t most) {
  std::size_t boxes = 1;
  for (const Runs& each : runs) {
    if (boxes > most / each.size()) return false;
    boxes *= each.size();
  }
  return boxes <= most;
}

/// \param most  the number of boxes that the tensor may still have.
RankPiece cut_rank(std::int64_t rank, std::span<const std::int64_t> shape, std::span<const MeshAxis> mesh,
                   std::span<AxisCut> cuts, std::span<const std::size_t> order, std::size_t most) {
  std::vector<std::int64_t> sizes, coordinate(mesh.size());
  for (const MeshAxis& axis : mesh) sizes.push_back(axis.size);
  set_index<std::int64_t>(coordinate, sizes, rank);
  RankPiece piece;
  piece.rank = rank;
  std::vector<Runs> runs(shape.size());
  for (std::size_t d = 0; d < shape.size(); ++d) append_run(runs[d], {0, shape[d]});
  for (std::size_t i = 0; i < mesh.size(); ++i) {
    const std::size_t axis = order.empty() ? i : order[i];
    const int dim = cut_dim(*cuts[axis].placement, static_cast<int>(shape.size()));
    if (dim < 0) {
      piece.replica = piece.replica || coordinate[axis] != 0;
    } else {
      Runs& cut = runs[static_cast<std::size_t>(dim)];
      cuts[axis].numbers.index = coordinate[axis];
      cut = cut_runs(cut, cuts[axis]);
    }
  }
  for (const Runs& each : runs) piece.local_sizes.push_back(length(each));
  if (!is_empty(piece.local_sizes) && !fit(runs, most)) {
    throw Error(ErrorCode::kUnsupported, fmt::format("the placements divide a tensor of {} into more than {} boxes",
                                                     to_string(shape), kMaxBoxes));
  }
  append_boxes(runs, piece);
  return piece;
}

}  // namespace

bool cuts_tensors(const Layout& layout) {
  return std::holds_alternative<RanksLayout>(layout) || std::holds_alternative<MeshLayout>(layout) ||
         std::holds_alternative<LikeLayout>(layout) || std::holds_alternative<KeepLayout>(layout);
}

std::vector<RankPiece> place(std::span<const std::int64_t> shape, std::span<const MeshAxis> mesh,
                             std::span<const Placement> placements, std::span<const std::size_t> order) {
  std::int64_t ranks = 1;
  for (const MeshAxis& axis : mesh) ranks = checked_mul(ranks, axis.size);
  std::vector<AxisCut> cuts = cuts_of(mesh, placements);
  std::vector<RankPiece> pieces;
  pieces.reserve(static_cast<std::size_t>(ranks));
  std::size_t boxes = 0;
  for (std::int64_t rank = 0; rank < ranks; ++rank) {
    pieces.push_back(cut_rank(rank, shape, mesh, cuts, order, kMaxBoxes - boxes));
    boxes += pieces.back().boxes.size();
  }
  return pieces;
}

RankPiece place_rank(std::span<const std::int64_t> shape, std::span<const MeshAxis> mesh,
                     std::span<const Placement> placements, std::int64_t rank) {
  std::vector<AxisCut> cuts = cuts_of(mesh, placements);
  return cut_rank(rank, shape, mesh, cuts, {}, kMaxBoxes);
}

}  // namespace shard
