#include "libshard/plan/pieces.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "libshard/core/checked.h"
#include "libshard/core/error.h"
#include "libshard/plan/order.h"
#include "libshard/plan/overlaps.h"

namespace shard {

namespace {

/// Whether a box is one run of the row-major elements of `shape`. The sizes of such a box are 1 in outer dimensions,
/// any number in one dimension, and the whole dimension in all inner ones.
bool is_run_of_rows(Dims shape, Dims sizes) {
  int d = 0;
  while (d < sizes.size() && sizes[d] == 1) ++d;
  for (++d; d < sizes.size(); ++d) {
    if (sizes[d] != shape[d]) return false;
  }
  return true;
}

bool is_line_piece(Dims shape, const Piece& piece) {
  return is_run_of_rows(shape, piece.sizes) && is_row_major(piece.sizes, piece.strides);
}

/// A piece of a line: `size` elements from `offset` on, stored from `first` on.
Piece line_piece(Arena& arena, const Piece& piece, std::int64_t offset, std::int64_t size, std::int64_t first) {
  constexpr std::int64_t kOne[] = {1};
  Piece line = piece;
  line.offsets = arena.dims(std::span(&offset, 1));
  line.sizes = arena.dims(std::span(&size, 1));
  line.strides = arena.dims(kOne);
  line.first = first;
  return line;
}

Piece flattened(Arena& arena, Dims shape, const Piece& piece) {
  // The row-major index of the box's first element (Horner's scheme), and the number of its elements.
  std::int64_t offset = 0, size = 1;
  for (int d = 0; d < shape.size(); ++d) {
    offset = offset * shape[d] + piece.offsets[d];
    size *= piece.sizes[d];
  }
  return line_piece(arena, piece, offset, size, piece.first);
}

Dims one_dim(Arena& arena, std::int64_t n) { return arena.dims(std::span(&n, 1)); }

/// Whether the piece's rows begin and end on block boundaries.
bool is_cut_in_blocks(const Piece& piece, const DTypeBlock& block) {
  const auto is_between = [&](std::int64_t n) { return n % block.elements == 0; };
  const int last = piece.sizes.size() - 1;
  if (last < 0 || !is_between(piece.first) || !is_between(piece.offsets[last]) || !is_between(piece.sizes[last]))
    return false;
  for (int d = 0; d < last; ++d) {
    if (piece.sizes[d] > 1 && !is_between(piece.strides[d])) return false;
  }
  return piece.strides[last] == 1;
}

std::int64_t block_bytes(std::int64_t elements, const DTypeBlock& block) {
  return elements / block.elements * block.bytes;
}

/// The piece in bytes: converts its last dimension, its strides and `first`.
Piece piece_in_bytes(Arena& arena, const Piece& piece, const DTypeBlock& block) {
  std::array<std::int64_t, kMaxDims> numbers;
  const auto scale = [&](Dims dims, int from) {
    for (int d = 0; d < dims.size(); ++d) {
      numbers[static_cast<std::size_t>(d)] = d < from ? dims[d] : block_bytes(dims[d], block);
    }
    return arena.dims(std::span(numbers).first(static_cast<std::size_t>(dims.size())));
  };
  Piece bytes = piece;
  const int last = piece.sizes.size() - 1;
  bytes.offsets = scale(piece.offsets, last);
  bytes.sizes = scale(piece.sizes, last);
  bytes.strides = scale(piece.strides, 0);  // The last stride is corrected below.
  std::ranges::copy(bytes.strides.span(), numbers.begin());
  numbers[static_cast<std::size_t>(last)] = 1;
  bytes.strides = arena.dims(std::span(numbers).first(static_cast<std::size_t>(last + 1)));
  bytes.first = block_bytes(piece.first, block);
  return bytes;
}

[[noreturn]] void refuse_cut(std::string_view tensor, const Piece& piece, const DTypeBlock& block) {
  throw Error(ErrorCode::kUnsupported,
              fmt::format("chunk {} begins or ends inside a byte", to_string(Box(piece.offsets, piece.sizes))))
      .of_tensor(tensor)
      .because(fmt::format("{0} elements share {1} bytes, so pieces must begin and end on multiples of {0}",
                           block.elements, block.bytes))
      .hint("choose a layout that keeps this tensor whole, or that shards a different dimension");
}

}  // namespace

void append_pieces(const Catalog& catalog, const Tensor& tensor, std::vector<Piece>& out) {
  for (std::uint32_t i = tensor.first_chunk; i < tensor.first_chunk + tensor.chunk_count; ++i) {
    const Chunk& chunk = catalog.chunks[i];
    if (is_empty(chunk.sizes)) continue;
    out.push_back({.offsets = chunk.offsets,
                   .sizes = chunk.sizes,
                   .strides = chunk.strides,
                   .first = chunk.first,
                   .storage = catalog.stored[chunk.stored].storage,
                   .chunk = i});
  }
}

void choose_replicas(std::vector<Piece>& pieces, std::size_t begin,
                     const std::function<std::size_t(std::span<const Piece>)>& choose) {
  std::size_t kept = begin;
  for (std::size_t first = begin, end = begin; first < pieces.size(); first = end) {
    // Chunks with different boxes do not overlap, so equal offsets mean equal boxes.
    while (end < pieces.size() && pieces[end].offsets == pieces[first].offsets) ++end;
    const std::span<const Piece> replicas = std::span(pieces).subspan(first, end - first);
    const Piece chosen = replicas[choose && replicas.size() > 1 ? choose(replicas) : 0];
    pieces[kept++] = chosen;
  }
  pieces.resize(kept);
}

/// A part keeps the strides of its piece. Its first element is as many strides away as its offsets are.
Piece part_of(Arena& arena, const Piece& piece, const Box& part) {
  Piece cut = piece;
  cut.offsets = arena.dims(part.offsets());
  cut.sizes = arena.dims(part.sizes());
  for (int d = 0; d < part.dims; ++d) cut.first += (cut.offsets[d] - piece.offsets[d]) * piece.strides[d];
  return cut;
}

std::vector<Piece> parts_filled(Arena& arena, std::span<const Piece> to, std::span<const Piece> from) {
  std::vector<Piece> parts;
  for (const Piece& piece : to) {
    // Finds by binary search the source pieces that may overlap, and keeps nonempty intersections as parts of `piece`.
    const Box box(piece.offsets, piece.sizes);
    const auto [begin, end] = candidates(from, box);
    for (const Piece& source : from.subspan(begin, end - begin)) {
      const Box common = intersect(box, Box(source.offsets, source.sizes));
      if (!common.empty()) parts.push_back(part_of(arena, piece, common));
    }
  }
  // The sort is stable, so replicas stay in the order of their ranks.
  std::ranges::stable_sort(
      parts, [](Dims a, Dims b) { return std::ranges::lexicographical_compare(a, b); }, &Piece::offsets);
  return parts;
}

Box bounding_box(std::span<const Piece> pieces) {
  Box box(pieces.front().offsets, pieces.front().sizes);
  for (const Piece& piece : pieces.subspan(1)) {
    for (int d = 0; d < box.dims; ++d) {
      const auto i = static_cast<std::size_t>(d);
      const std::int64_t end = std::max(box.offset[i] + box.size[i], piece.offsets[d] + piece.sizes[d]);
      box.offset[i] = std::min(box.offset[i], piece.offsets[d]);
      box.size[i] = end - box.offset[i];
    }
  }
  return box;
}

void crop(Arena& arena, const Box& box, std::vector<Piece>& pieces, std::size_t begin) {
  std::size_t kept = begin;
  for (std::size_t i = begin; i < pieces.size(); ++i) {
    Box common = intersect(box, Box(pieces[i].offsets, pieces[i].sizes));
    if (common.empty()) continue;
    Piece part = part_of(arena, pieces[i], common);
    for (std::size_t d = 0; d < static_cast<std::size_t>(box.dims); ++d) common.offset[d] -= box.offset[d];
    part.offsets = arena.dims(common.offsets());
    pieces[kept++] = part;
  }
  pieces.resize(kept);
}

bool flatten(Arena& arena, Dims& shape, std::span<Piece> from, std::span<Piece> to) {
  // A tensor is one line only if every piece on both sides is one run of its storage and one run of rows.
  const auto fits = [&](const Piece& piece) { return is_line_piece(shape, piece); };
  if (!std::ranges::all_of(from, fits) || !std::ranges::all_of(to, fits)) return false;
  for (Piece& piece : from) piece = flattened(arena, shape, piece);
  for (Piece& piece : to) piece = flattened(arena, shape, piece);
  shape = one_dim(arena, checked_numel(shape.span()));
  return true;
}

/// Packed elements, such as float4, are copied as the bytes that they share. So every border must be between two blocks
/// of elements.
void count_in_bytes(Arena& arena, std::string_view tensor, const DTypeBlock& block, Dims& shape, std::span<Piece> from,
                    std::span<Piece> to) {
  const bool is_line = flatten(arena, shape, from, to);
  for (const std::span<Piece> side : {from, to}) {
    for (Piece& piece : side) {
      if (!is_cut_in_blocks(piece, block)) refuse_cut(tensor, piece, block);
      piece = piece_in_bytes(arena, piece, block);
    }
  }
  std::array<std::int64_t, kMaxDims> sizes;
  std::ranges::copy(shape.span(), sizes.begin());
  const auto dims = static_cast<std::size_t>(is_line ? 1 : shape.size());
  sizes[dims - 1] = block_bytes(sizes[dims - 1], block);
  shape = arena.dims(std::span(sizes).first(dims));
}

void order_as_stored(Arena& arena, Dims& shape, std::span<Piece> from, std::span<Piece> to) {
  // Sorts dimensions by stride. Then moves the dimensions along which source pieces differ to the front, so that all
  // tiles of one piece come before those of the next.
  Order order = order_of(from.front().strides.span());
  const auto dims = static_cast<std::ptrdiff_t>(shape.size());
  std::stable_partition(order.begin(), order.begin() + dims, [&](int d) {
    return std::ranges::any_of(from, [&](const Piece& piece) { return piece.offsets[d] != from.front().offsets[d]; });
  });
  const auto reordered = [&](Dims numbers) {
    Numbers moved;
    for (int d = 0; d < numbers.size(); ++d) {
      moved[static_cast<std::size_t>(d)] = numbers[order[static_cast<std::size_t>(d)]];
    }
    return arena.dims(std::span(moved).first(static_cast<std::size_t>(numbers.size())));
  };
  shape = reordered(shape);
  for (const std::span<Piece> side : {from, to}) {
    for (Piece& piece : side) {
      piece.offsets = reordered(piece.offsets);
      piece.sizes = reordered(piece.sizes);
      piece.strides = reordered(piece.strides);
    }
    std::ranges::stable_sort(
        side, [](Dims a, Dims b) { return std::ranges::lexicographical_compare(a, b); }, &Piece::offsets);
  }
}

/// Converts offsets and sizes of a line from elements to bytes.
void scale_line(Arena& arena, Dims& shape, std::span<Piece> from, std::span<Piece> to, std::int64_t element_bytes) {
  for (const std::span<Piece> side : {from, to}) {
    for (Piece& piece : side) {
      piece = line_piece(arena, piece, piece.offsets[0] * element_bytes, piece.sizes[0] * element_bytes,
                         piece.first * element_bytes);
    }
  }
  shape = one_dim(arena, checked_mul(shape[0], element_bytes));
}

}  // namespace shard
