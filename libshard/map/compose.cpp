#include "libshard/map/compose.h"

#include <algorithm>
#include <array>

#include "libshard/core/box.h"
#include "libshard/core/checked.h"

namespace shard {

namespace {

using Numbers = std::array<std::int64_t, kMaxDims>;

/// The part of the box that one chunk holds. \returns false where there is none
bool part_in_chunk(const MapBox& box, const Chunk& chunk, Numbers& first, Numbers& count) {
  for (int s = 0; s < box.begin.size(); ++s) {
    const bool is_fixed = std::ranges::find(box.axis, s) == box.axis.end();
    if (is_fixed && (box.begin[s] < chunk.offsets[s] || box.begin[s] >= chunk.offsets[s] + chunk.sizes[s]))
      return false;
  }
  for (int d = 0; d < box.sizes.size(); ++d) {
    const auto s = static_cast<int>(box.axis[d]);
    // Positions begin + i * step that lie in the chunk.
    const std::int64_t before = chunk.offsets[s] - box.begin[s], end = before + chunk.sizes[s];
    const std::int64_t from = before <= 0 ? 0 : ceil_div(before, box.step[d]);
    const std::int64_t to = end <= 0 ? 0 : std::min(box.sizes[d], ceil_div(end, box.step[d]));
    if (from >= to) return false;
    first[static_cast<std::size_t>(d)] = from;
    count[static_cast<std::size_t>(d)] = to - from;
  }
  return true;
}

}  // namespace

void append_chunks(const Catalog& stored, const Tensor& tensor, const MapBox& box, Arena& arena,
                   std::vector<Chunk>& out) {
  const int dims = box.sizes.size();
  const auto count_dims = static_cast<std::size_t>(dims);
  Numbers first, count, offsets, strides;
  for (const Chunk& chunk : stored.chunks_of(tensor)) {
    if (!part_in_chunk(box, chunk, first, count)) continue;
    std::int64_t begin = chunk.first;
    for (int s = 0; s < box.begin.size(); ++s) begin += (box.begin[s] - chunk.offsets[s]) * chunk.strides[s];
    for (int d = 0; d < dims; ++d) {
      const auto i = static_cast<std::size_t>(d);
      offsets[i] = box.offsets[d] + first[i];
      strides[i] = chunk.strides[static_cast<int>(box.axis[d])] * box.step[d];
      begin += first[i] * strides[i];
    }
    Chunk part;
    part.offsets = arena.dims(std::span(offsets).first(count_dims));
    part.sizes = arena.dims(std::span(count).first(count_dims));
    part.strides = arena.dims(std::span(strides).first(count_dims));
    part.first = begin;
    part.stored = chunk.stored;
    out.push_back(part);
  }
}

void sort_chunks(const Catalog& catalog, std::span<Chunk> chunks) {
  std::ranges::stable_sort(chunks, [&](const Chunk& a, const Chunk& b) {
    const auto order =
        std::lexicographical_compare_three_way(a.offsets.begin(), a.offsets.end(), b.offsets.begin(), b.offsets.end());
    return order != 0 ? order < 0 : catalog.stored[a.stored].rank < catalog.stored[b.stored].rank;
  });
}

}  // namespace shard
