#include "apps/shardctl/text/sharding_text.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <span>
#include <utility>

#include "libshard/core/checked.h"
#include "libshard/core/short_text.h"
#include "libshard/core/sort_unique.h"

namespace shard::app {
namespace {

constexpr std::size_t kMaxListed = 8;  ///< At most this many sizes or runs of ranks are printed.

// ---- Sizes of pieces.

/// "3, 3, 3, 0", or "15 of 9, 4, 48 empty" if there are many; empty if all sizes are equal.
std::string uneven_text(std::span<const std::int64_t> sizes) {
  if (std::ranges::adjacent_find(sizes, std::ranges::not_equal_to()) == sizes.end()) return {};
  if (sizes.size() <= kMaxListed) return fmt::format("{}", fmt::join(sizes, ", "));
  std::vector<std::string> runs;
  for (std::size_t i = 0, end = 0; i < sizes.size() && runs.size() <= kMaxListed; i = end) {
    while (end < sizes.size() && sizes[end] == sizes[i]) ++end;
    const std::string size = sizes[i] == 0 ? "empty" : fmt::format("{}{}", end - i > 1 ? "of " : "", sizes[i]);
    runs.push_back(end - i > 1 ? fmt::format("{} {}", end - i, size) : size);
  }
  if (runs.size() > kMaxListed) runs.back() = "...";
  return fmt::format("{}", fmt::join(runs, ", "));
}

/// The sizes of torch.chunk: each piece has ceil(n / parts), the last ones less or nothing.
std::vector<std::int64_t> chunk_sizes(std::int64_t n, std::int64_t parts) {
  const std::int64_t full = ceil_div(n, parts);
  std::vector<std::int64_t> sizes(static_cast<std::size_t>(parts));
  for (std::int64_t& size : sizes) {
    size = std::min(n, full);
    n -= size;
  }
  return sizes;
}

/// "dim 1: 3, 2", without the dimension if it is the only sharded one. Empty if `sizes` is empty.
std::string dim_sizes(int dim, const std::string& sizes, bool say_dim) {
  return sizes.empty() || !say_dim ? sizes : fmt::format("dim {}: {}", dim, sizes);
}

std::string in_parentheses(std::vector<std::string> texts) {
  std::erase(texts, std::string());
  return texts.empty() ? std::string() : fmt::format(" ({})", fmt::join(texts, "; "));
}

// ---- Shardings that the checkpoint records.

/// " (3, 3, 3, 0)", or nothing if all pieces have the same size.
std::string uneven_words(const Sharding& sharding, Dims shape) {
  std::map<int, std::int64_t> parts;
  std::map<int, int> axes;
  for (std::size_t axis = 0; axis < sharding.placements.size(); ++axis) {
    const Placement& placement = sharding.placements[axis];
    if (placement.kind == Placement::kReplicate || placement.dim >= shape.size()) continue;
    parts.try_emplace(placement.dim, 1).first->second *= sharding.mesh[axis].size;
    ++axes[placement.dim];
  }
  std::vector<std::string> texts;
  for (const auto& [dim, count] : parts) {
    const bool is_plain = axes[dim] == 1;
    std::string text = is_plain ? uneven_text(chunk_sizes(shape[dim], count)) : std::string();
    if (!is_plain && shape[dim] % count != 0) text = "unevenly";
    texts.push_back(dim_sizes(dim, text, parts.size() > 1));
  }
  return in_parentheses(texts);
}

std::string words_text(const Sharding& sharding, Dims shape, Detail detail) {
  std::vector<std::string> placements;
  for (const Placement& placement : sharding.placements) placements.push_back(to_string(placement));
  const std::string joined = fmt::format("{}", fmt::join(placements, ", "));
  const std::string mesh = mesh_text(sharding);
  const bool one_line = sharding.mesh.size() == 1 && !has_axis_names(sharding.mesh);
  std::string text = one_line ? fmt::format("{} over {}", joined, mesh) : fmt::format("{}: {}", mesh, joined);
  return detail == Detail::kSizes ? text + uneven_words(sharding, shape) : text;
}

// ---- Boxes.

/// The chunks of a tensor as boxes, without replicas.
struct Boxes {
  std::vector<const Chunk*> distinct;
  std::vector<std::int64_t> ranks;    ///< The ranks that the chunks record, sorted, without duplicates.
  std::vector<std::int64_t> rank_of;  ///< For each distinct box, the rank of its first chunk, or -1.
  std::vector<int> cut_dims;
  std::int64_t copies = 0;  ///< Number of chunks that repeat a box.
};

Boxes boxes_of(const Catalog& catalog, const Tensor& tensor) {
  Boxes boxes;
  for (const Chunk& chunk : catalog.chunks_of(tensor)) {
    const std::int64_t rank = catalog.stored[chunk.stored].rank;
    if (rank >= 0) boxes.ranks.push_back(rank);
    const bool repeats = !boxes.distinct.empty() && boxes.distinct.back()->offsets == chunk.offsets &&
                         boxes.distinct.back()->sizes == chunk.sizes;
    if (repeats) {
      ++boxes.copies;
    } else {
      boxes.distinct.push_back(&chunk);
      boxes.rank_of.push_back(rank);
    }
  }
  sort_unique(boxes.ranks);
  for (int d = 0; d < tensor.shape.size(); ++d) {
    const auto cuts = [&](const Chunk* chunk) { return chunk->sizes[d] != tensor.shape[d]; };
    if (std::ranges::any_of(boxes.distinct, cuts)) boxes.cut_dims.push_back(d);
  }
  return boxes;
}

/// The sizes of the pieces along dimension `d`, if the boxes form consecutive intervals in it: those with the same
/// begin have the same end. Otherwise nothing.
std::vector<std::int64_t> pieces_of(const Boxes& boxes, Dims shape, int d) {
  std::vector<std::pair<std::int64_t, std::int64_t>> pieces;
  for (const Chunk* chunk : boxes.distinct) pieces.emplace_back(chunk->offsets[d], chunk->sizes[d]);
  sort_unique(pieces);
  std::vector<std::int64_t> sizes;
  std::int64_t at = 0;
  for (const auto& [offset, size] : pieces) {
    sizes.push_back(size);
    if (size == 0) continue;  // An empty box may be anywhere, even past the end.
    if (offset != at) return {};
    at += size;
  }
  return at == shape[d] ? sizes : std::vector<std::int64_t>();
}

/// The sizes along each sharded dimension if the boxes are all cells of a grid; otherwise nothing.
std::vector<std::vector<std::int64_t>> grid_of(const Boxes& boxes, Dims shape) {
  std::vector<std::vector<std::int64_t>> grid;
  std::size_t cells = 1;
  for (const int d : boxes.cut_dims) {
    grid.push_back(pieces_of(boxes, shape, d));
    cells *= grid.back().size();
    if (cells == 0 || cells > boxes.distinct.size()) return {};
  }
  return cells == boxes.distinct.size() ? grid : std::vector<std::vector<std::int64_t>>();
}

/// ", ranks 0-3", or nothing if the format does not record ranks.
std::string over(const Boxes& boxes) {
  if (boxes.ranks.empty()) return {};
  return fmt::format(", rank{} {}", boxes.ranks.size() == 1 ? "" : "s", ranks_text(boxes.ranks));
}

/// "S(0) over 4 ranks" if each rank has one piece, in order, of torch.chunk's size; "sharded along dim 0 over 4 ranks"
/// for other sizes; "4 pieces along dim 0, rank 0" in all other cases.
std::string line_text(const Catalog& catalog, const Boxes& boxes, std::span<const std::int64_t> sizes) {
  const auto count = static_cast<std::int64_t>(boxes.distinct.size());
  const int dim = boxes.cut_dims.front();
  const bool in_order = boxes.rank_of.front() >= 0 && boxes.copies == 0 &&
                        std::ranges::adjacent_find(boxes.rank_of, std::ranges::greater_equal()) == boxes.rank_of.end();
  if (!in_order) return fmt::format("{} pieces along dim {}{}", count, dim, over(boxes));
  const bool all = catalog.world_size == count && boxes.rank_of.back() == count - 1;
  const std::int64_t whole = std::accumulate(sizes.begin(), sizes.end(), std::int64_t{0});
  const bool is_shard = std::ranges::equal(sizes, chunk_sizes(whole, std::ssize(sizes)));
  return fmt::format("{} over {}", is_shard ? fmt::format("S({})", dim) : fmt::format("sharded along dim {}", dim),
                     all ? plural(count, "rank") : "ranks " + ranks_text(boxes.ranks));
}

std::string sizes_text(const Boxes& boxes, const std::vector<std::vector<std::int64_t>>& grid) {
  std::vector<std::string> texts;
  for (std::size_t i = 0; i < grid.size(); ++i) {
    texts.push_back(dim_sizes(boxes.cut_dims[i], uneven_text(grid[i]), grid.size() > 1));
  }
  return in_parentheses(texts);
}

std::string copies_text(const Boxes& boxes) {
  const auto count = static_cast<std::int64_t>(boxes.distinct.size());
  if (boxes.copies == 0) return {};
  if (boxes.copies % count == 0) return fmt::format(", each {} times", 1 + boxes.copies / count);
  return fmt::format(", {}", plural(boxes.copies, "more copy", "more copies"));
}

std::string boxes_text(const Catalog& catalog, const Tensor& tensor, Detail detail) {
  const Boxes boxes = boxes_of(catalog, tensor);
  const std::size_t count = boxes.distinct.size();
  if (count == 0) return {};
  if (boxes.cut_dims.empty()) {  // All boxes are replicas. Chunks without elements may be distinct.
    if (boxes.copies > 0) return fmt::format("{} copies{}", 1 + boxes.copies, over(boxes));
    return boxes.ranks.empty() ? std::string() : fmt::format("rank {}", boxes.ranks.front());
  }
  const auto grid = grid_of(boxes, tensor.shape);
  const std::string sizes = detail == Detail::kSizes && !grid.empty() ? sizes_text(boxes, grid) : std::string();
  if (grid.empty()) {
    return fmt::format("{} boxes (dim{} {}){}{}", count, boxes.cut_dims.size() == 1 ? "" : "s",
                       fmt::join(boxes.cut_dims, ", "), copies_text(boxes), over(boxes));
  }
  if (grid.size() == 1) return line_text(catalog, boxes, grid.front()) + copies_text(boxes) + sizes;
  std::vector<std::size_t> sides;
  for (const auto& side : grid) sides.push_back(side.size());
  return fmt::format("{} grid (dims {}){}{}{}", fmt::join(sides, " x "), fmt::join(boxes.cut_dims, ", "),
                     copies_text(boxes), over(boxes), sizes);
}

}  // namespace

std::string ranks_text(std::vector<std::int64_t> ranks) {
  std::ranges::sort(ranks);
  std::vector<std::string> runs;
  for (std::size_t i = 0, end = 0; i < ranks.size(); i = end) {
    if (runs.size() == kMaxListed) {
      runs.push_back(fmt::format("... ({})", plural(std::ssize(ranks), "rank")));
      break;
    }
    for (end = i + 1; end < ranks.size() && ranks[end] == ranks[end - 1] + 1;) ++end;
    runs.push_back(end - i == 1 ? fmt::format("{}", ranks[i]) : fmt::format("{}-{}", ranks[i], ranks[end - 1]));
  }
  return fmt::format("{}", fmt::join(runs, ", "));
}

std::string mesh_text(const Sharding& sharding) {
  std::vector<std::string> axes;
  const bool named = has_axis_names(sharding.mesh);
  for (const MeshAxis& axis : sharding.mesh) {
    axes.push_back(named ? fmt::format("{}={}", axis.name, axis.size) : std::to_string(axis.size));
  }
  std::string text =
      named ? fmt::format("{}", fmt::join(axes, " "))
            : fmt::format("{} rank{}", fmt::join(axes, " x "), axes == std::vector<std::string>{"1"} ? "" : "s");
  std::vector<std::int64_t> ranks = mesh_ranks(sharding);
  std::ranges::sort(ranks);
  const bool from_zero = ranks.empty() || ranks.back() == static_cast<std::int64_t>(ranks.size()) - 1;
  return from_zero ? text : fmt::format("{} ({} {})", text, ranks.size() == 1 ? "rank" : "ranks", ranks_text(ranks));
}

std::string sharding_text(const Catalog& catalog, const Tensor& tensor, Detail detail) {
  if (tensor.sharding == kNoIndex) return boxes_text(catalog, tensor, detail);
  return words_text(catalog.shardings[tensor.sharding], tensor.shape, detail);
}

Meshes::Meshes(const Catalog& catalog) {
  std::map<std::pair<std::vector<std::pair<std::string, std::int64_t>>, std::vector<std::int64_t>>, std::size_t> known;
  for (const Sharding& sharding : catalog.shardings) {
    std::vector<std::pair<std::string, std::int64_t>> axes;
    for (const MeshAxis& axis : sharding.mesh) axes.emplace_back(axis.name, axis.size);
    const auto [found, is_new] = known.try_emplace({std::move(axes), mesh_ranks(sharding)}, list.size());
    if (is_new) list.push_back(&sharding);
    of_sharding.push_back(found->second);
  }
}

}  // namespace shard::app
