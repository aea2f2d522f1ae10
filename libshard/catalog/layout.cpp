#include "libshard/catalog/layout.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "libshard/core/checked.h"
#include "libshard/core/error.h"

namespace shard {

namespace {

constexpr std::size_t kMaxRuns = 1 << 20;

struct Run {
  std::int64_t begin, end;
};
using Runs = std::vector<Run>;  // Of one dimension; concatenated they are the local one.

std::int64_t length(const Runs& runs) {
  return std::accumulate(runs.begin(), runs.end(), std::int64_t{0},
                         [](std::int64_t sum, const Run& run) { return sum + run.end - run.begin; });
}

std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return a / b + (a % b != 0 ? 1 : 0); }

/// Part `index` of `parts` of [0, n), as torch.chunk cuts.
Run chunk_of(std::int64_t n, std::int64_t parts, std::int64_t index) {
  const std::int64_t size = ceil_div(n, parts);
  const std::int64_t begin = size == 0 || index > n / size ? n : size * index;
  return {begin, std::min(n, begin + std::min(size, n - begin))};
}

void append_run(Runs& runs, Run run) {
  if (run.begin >= run.end) return;
  if (!runs.empty() && runs.back().end == run.begin) {
    runs.back().end = run.end;
  } else {
    runs.push_back(run);
  }
}

/// Appends what lies at the local positions `cut` of the concatenated `runs`, from run `next` on, which begins at local
/// position `position`. Both move on, so that a sequence of rising cuts passes over the runs once.
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

/// What coordinate `index` of `parts` gets. Shard is a strided shard of factor 1: torch cuts the local dimension into
/// `split_factor` pieces, each of them into `parts`, and joins each piece's part `index`.
Runs cut_runs(const Runs& runs, const Placement& placement, std::int64_t parts, std::int64_t index) {
  const std::int64_t n = length(runs);
  Runs out;
  if (n == 0) return out;
  const std::int64_t piece_size = ceil_div(n, placement.kind == Placement::kStridedShard ? placement.split_factor : 1);
  std::size_t next = 0;
  std::int64_t position = 0;
  for (std::int64_t begin = 0; begin < n; begin += std::min(piece_size, n - begin)) {
    const Run part = chunk_of(std::min(piece_size, n - begin), parts, index);
    append_cut(runs, {begin + part.begin, begin + part.end}, next, position, out);
    if (out.size() > kMaxRuns) {
      throw Error(ErrorCode::kUnsupported,
                  fmt::format("{} cuts a dimension of {} into more than {} runs", to_string(placement), n, kMaxRuns));
    }
  }
  return out;
}

/// The dimension that a placement cuts of a tensor of `dims` dimensions, or -1.
int cut_dim(const Placement& placement, int dims) {
  if (placement.kind == Placement::kReplicate) return -1;
  const int dim = placement.dim < 0 ? placement.dim + dims : placement.dim;
  return dim >= 0 && dim < dims ? dim : -1;
}

/// All combinations of the dimensions' runs, the last dimension's fastest, as local elements are ordered.
void append_boxes(const std::vector<Runs>& runs, RankPiece& piece) {
  const std::size_t dims = runs.size();
  if (is_empty(piece.local_sizes)) return;
  std::vector<std::size_t> at(dims, 0);
  std::vector<std::int64_t> local(dims, 0);
  for (;;) {
    Box box;
    box.dims = static_cast<int>(dims);
    for (std::size_t d = 0; d < dims; ++d) {
      box.offset[d] = runs[d][at[d]].begin;
      box.size[d] = runs[d][at[d]].end - runs[d][at[d]].begin;
    }
    piece.boxes.push_back(box);
    piece.local_offsets.push_back(local);
    std::size_t d = dims;
    while (d-- > 0) {
      local[d] += box.size[d];
      if (++at[d] < runs[d].size()) break;
      at[d] = 0;
      local[d] = 0;
    }
    if (d == static_cast<std::size_t>(-1)) return;
  }
}

RankPiece place_rank(std::int64_t rank, std::span<const std::int64_t> shape, std::span<const MeshAxis> mesh,
                     std::span<const Placement> placements, std::span<const std::size_t> order) {
  std::vector<std::int64_t> coordinate(mesh.size());
  for (std::size_t axis = mesh.size(), rest = static_cast<std::size_t>(rank); axis-- > 0;) {
    const auto size = static_cast<std::size_t>(mesh[axis].size);
    coordinate[axis] = static_cast<std::int64_t>(rest % size);
    rest /= size;
  }
  RankPiece piece;
  piece.rank = rank;
  std::vector<Runs> runs(shape.size());
  for (std::size_t d = 0; d < shape.size(); ++d) append_run(runs[d], {0, shape[d]});
  for (std::size_t i = 0; i < mesh.size(); ++i) {
    const std::size_t axis = order.empty() ? i : order[i];
    const int dim = cut_dim(placements[axis], static_cast<int>(shape.size()));
    if (dim < 0) {
      piece.replica = piece.replica || coordinate[axis] != 0;
    } else {
      Runs& cut = runs[static_cast<std::size_t>(dim)];
      cut = cut_runs(cut, placements[axis], mesh[axis].size, coordinate[axis]);
    }
  }
  for (const Runs& each : runs) piece.local_sizes.push_back(length(each));
  append_boxes(runs, piece);
  return piece;
}

}  // namespace

std::vector<RankPiece> place(std::span<const std::int64_t> shape, std::span<const MeshAxis> mesh,
                             std::span<const Placement> placements, std::span<const std::size_t> order) {
  std::int64_t ranks = 1;
  for (const MeshAxis& axis : mesh) ranks = checked_mul(ranks, axis.size);
  std::vector<RankPiece> pieces;
  pieces.reserve(static_cast<std::size_t>(ranks));
  for (std::int64_t rank = 0; rank < ranks; ++rank) {
    pieces.push_back(place_rank(rank, shape, mesh, placements, order));
  }
  return pieces;
}

}  // namespace shard
