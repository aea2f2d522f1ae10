#include "libshard/map/arithmetic/compose.h"

#include <algorithm>
#include <array>
#include <utility>

#include "libshard/core/box.h"
#include "libshard/core/checked.h"
#include "libshard/core/sort_unique.h"
#include "libshard/map/arithmetic/flat_buffers.h"

namespace shard {

namespace {

using Numbers = std::array<std::int64_t, kMaxDims>;

/// Whether the box has a single position in a stored dimension, which is then not the axis of any logical dimension.
bool is_fixed(const MapBox& box, int dim) { return std::ranges::find(box.axis, dim) == box.axis.end(); }

/// Intersects the box with one chunk. \returns false if they do not overlap
bool part_in_chunk(const MapBox& box, const Chunk& chunk, Numbers& first, Numbers& count) {
  for (int s = 0; s < box.begin.size(); ++s) {
    if (is_fixed(box, s) && (box.begin[s] < chunk.offsets[s] || box.begin[s] >= chunk.offsets[s] + chunk.sizes[s]))
      return false;
  }
  for (int d = 0; d < box.sizes.size(); ++d) {
    const auto s = static_cast<int>(box.axis[d]);
    // Element i of the box is at begin + i * step. Finds the range of i that is inside the chunk.
    const std::int64_t before = chunk.offsets[s] - box.begin[s], end = before + chunk.sizes[s];
    const std::int64_t from = before <= 0 ? 0 : ceil_div(before, box.step[d]);
    const std::int64_t to = end <= 0 ? 0 : std::min(box.sizes[d], ceil_div(end, box.step[d]));
    if (from >= to) return false;
    first[static_cast<std::size_t>(d)] = from;
    count[static_cast<std::size_t>(d)] = to - from;
  }
  return true;
}

/// The chunks at the box's position in the leading single dimensions (of the first `singles`) in which it is fixed.
std::span<const Chunk> chunks_at(std::span<const Chunk> chunks, int singles, const MapBox& box) {
  int dims = 0;
  while (dims < singles && is_fixed(box, dims)) ++dims;
  const auto first_dims = [dims](const Dims& offsets) { return offsets.span().first(static_cast<std::size_t>(dims)); };
  const auto precedes = [](std::span<const std::int64_t> a, std::span<const std::int64_t> b) {
    return std::ranges::lexicographical_compare(a, b);
  };
  const auto found = std::ranges::equal_range(chunks, first_dims(box.begin), precedes,
                                              [&](const Chunk& chunk) { return first_dims(chunk.offsets); });
  return {found.begin(), found.end()};
}

int single_dims_of(std::span<const Chunk> chunks, int dims) {
  int singles = dims;
  for (std::size_t i = 0; i < chunks.size(); ++i) {
    int first = 0;
    while (first < singles && chunks[i].sizes[first] == 1) ++first;
    singles = first;
    const bool is_sorted = i == 0 || !std::ranges::lexicographical_compare(chunks[i].offsets, chunks[i - 1].offsets);
    if (!is_sorted) return 0;
  }
  return singles;
}

/// Appends the parts of a stored tensor's chunks that are inside a box, as chunks of the logical tensor.
void append_chunks(std::span<const Chunk> chunks, const MapBox& box, Arena& arena, std::vector<Chunk>& out) {
  const int dims = box.sizes.size();
  const auto count_dims = static_cast<std::size_t>(dims);
  Numbers first, count, offsets, strides;
  for (const Chunk& chunk : chunks) {
    if (!part_in_chunk(box, chunk, first, count)) continue;
    // The part's first element: the box's corner relative to the chunk's, and then `first` steps along each logical
    // dimension. A logical dimension's stride is that of its stored axis times its step.
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

/// Appends the parts of flat buffers that are inside a box of a local tensor.
void append_flat(const LinkTargets& targets, const MapLink& link, Arena& arena, std::vector<Chunk>& out) {
  const MapBox& box = link.box;
  if (is_empty(box.sizes)) return;
  Arena scratch;
  const Dims row_major = row_major_strides(scratch, targets.flat->locals()[link.stored].shape);
  // The first and last flat element of the box. Only chunks between the two can contain parts of it.
  std::int64_t begin = 0;
  for (int s = 0; s < box.begin.size(); ++s) begin += box.begin[s] * row_major[s];
  std::int64_t last = begin;
  for (int d = 0; d < box.sizes.size(); ++d) {
    last += (box.sizes[d] - 1) * box.step[d] * row_major[static_cast<int>(box.axis[d])];
  }
  std::vector<Chunk> chunks;
  targets.flat->append_chunks(targets.stored, targets.buffer_of, link.stored, begin, last + 1, scratch, chunks);
  append_chunks(chunks, box, arena, out);
}

/// Appends the parts of a chunk between borders along one dimension. \pre its ends are among the borders
void append_split(const Chunk& chunk, int dim, std::span<const std::int64_t> borders, Arena& arena,
                  std::vector<Chunk>& out) {
  const std::int64_t begin = chunk.offsets[dim], end = begin + chunk.sizes[dim];
  auto next = std::ranges::upper_bound(borders, begin);
  if (begin == end || *next == end) return out.push_back(chunk);
  const auto i = static_cast<std::size_t>(dim);
  Numbers offsets, sizes;
  std::ranges::copy(chunk.offsets, offsets.begin());
  std::ranges::copy(chunk.sizes, sizes.begin());
  for (std::int64_t at = begin; at < end; at = *next++) {
    offsets[i] = at;
    sizes[i] = *next - at;
    Chunk part = chunk;
    part.offsets = arena.dims(std::span(offsets).first(static_cast<std::size_t>(chunk.offsets.size())));
    part.sizes = arena.dims(std::span(sizes).first(static_cast<std::size_t>(chunk.sizes.size())));
    part.first += (at - begin) * chunk.strides[dim];
    out.push_back(part);
  }
}

}  // namespace

std::vector<int> single_dims(const Catalog& stored) {
  std::vector<int> all;
  all.reserve(stored.tensors.size());
  for (const Tensor& tensor : stored.tensors) {
    all.push_back(single_dims_of(stored.chunks_of(tensor), tensor.shape.size()));
  }
  return all;
}

void append_linked(const LinkTargets& targets, std::span<const MapLink> links, Arena& arena, std::vector<Chunk>& out) {
  const std::size_t begin = out.size();
  for (const MapLink& link : links) {
    if (link.is_flat) {
      append_flat(targets, link, arena, out);
      continue;
    }
    const std::uint32_t index = targets.index_of.empty() ? link.stored : targets.index_of[link.stored];
    const std::span<const Chunk> chunks = targets.stored.chunks_of(targets.stored.tensors[index]);
    if (link.is_whole) {
      out.insert(out.end(), chunks.begin(), chunks.end());
    } else {
      append_chunks(chunks_at(chunks, targets.singles[index], link.box), link.box, arena, out);
    }
  }
  targets.stored.sort_chunks(std::span(out).subspan(begin));
}

void split_at_borders(const Catalog& catalog, Arena& arena, std::vector<Chunk>& chunks) {
  const int dims = chunks.empty() ? 0 : chunks.front().offsets.size();
  for (int dim = 0; dim < dims; ++dim) {
    std::vector<std::int64_t> borders;
    for (const Chunk& chunk : chunks) {
      borders.push_back(chunk.offsets[dim]);
      borders.push_back(chunk.offsets[dim] + chunk.sizes[dim]);
    }
    sort_unique(borders);
    std::vector<Chunk> parts;
    for (const Chunk& chunk : chunks) append_split(chunk, dim, borders, arena, parts);
    chunks = std::move(parts);
  }
  catalog.sort_chunks(chunks);
}

}  // namespace shard
