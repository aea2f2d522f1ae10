#include "libshard/exec/tensor_reader.h"

#include <algorithm>
#include <cassert>
#include <vector>

#include "libshard/core/checked.h"
#include "libshard/core/error.h"
#include "libshard/exec/piece_reader.h"
#include "libshard/exec/runs.h"
#include "libshard/plan/overlaps.h"
#include "libshard/plan/pieces.h"

namespace shard {

namespace {

constexpr std::int64_t kStaging = 1 << 20;

/// Calls `each(box)` for the boxes, one after another, that make up elements [begin, end) of `shape` from dimension `d`
/// on; `box` holds the indices of the dimensions before. At most two for each dimension, less one.
template <class Each>
void peel(std::span<const std::int64_t> shape, std::size_t d, std::int64_t begin, std::int64_t end, Box& box,
          const Each& each) {
  if (begin == end) return;
  if (d == shape.size()) return each(box);
  std::int64_t inner = 1;
  for (std::size_t i = d + 1; i < shape.size(); ++i) inner *= shape[i];
  const std::int64_t first_whole = (begin + inner - 1) / inner, last_whole = end / inner;
  const auto peel_within = [&](std::int64_t index, std::int64_t from, std::int64_t to) {
    box.offset[d] = index, box.size[d] = 1;
    peel(shape, d + 1, from - index * inner, to - index * inner, box, each);
  };
  if (first_whole > last_whole) return peel_within(last_whole, begin, end);
  if (begin < first_whole * inner) peel_within(first_whole - 1, begin, first_whole * inner);
  if (first_whole < last_whole) {
    box.offset[d] = first_whole, box.size[d] = last_whole - first_whole;
    for (std::size_t i = d + 1; i < shape.size(); ++i) box.offset[i] = 0, box.size[i] = shape[i];
    each(box);
  }
  if (last_whole * inner < end) peel_within(last_whole, last_whole * inner, end);
}

}  // namespace

struct TensorReader::Impl {
  Impl(const Catalog& catalog, const Reader& reader, const Tensor& tensor, Progress& progress, Findings& findings)
      : name(tensor.name),
        checks(catalog, findings),
        piece_reader(catalog, reader, checks, progress, {}),
        shape(tensor.shape),
        dtype(tensor.dtype) {
    append_pieces(catalog, tensor, pieces);
    choose_replicas(pieces, 0);
    is_in_bytes = true;
    if (dtype_block(dtype).elements > 1) {
      count_in_bytes(arena, tensor.name, dtype_block(dtype), shape, pieces, {});
    } else if (flatten(arena, shape, pieces, {})) {
      scale_line(arena, shape, pieces, {}, element_bytes(dtype));
      is_line = true;
    } else {
      is_in_bytes = false;
    }
    set_running_ends(pieces);
  }

  std::int64_t unit_bytes() const { return is_in_bytes ? 1 : element_bytes(dtype); }

  void read_box(const Box& box, std::byte* out) try {
    Numbers strides;
    const auto dims = static_cast<std::size_t>(box.dims);
    const std::span<const std::int64_t> sizes = std::span(box.size).first(dims);
    row_major_strides(sizes, std::span(strides).first(dims));
    const BufferBox whole{std::span(box.offset).first(dims), sizes, std::span(strides).first(dims), out};
    const auto [first, last] = candidates(pieces, box);
    for (const Piece& piece : std::span<const Piece>(pieces).subspan(first, last - first)) {
      const Box common = intersect(box, Box(piece.offsets, piece.sizes));
      if (common.empty()) continue;
      piece_reader.read(piece, common, static_cast<std::size_t>(unit_bytes()), std::span(&whole, 1), staging);
    }
  } catch (Error& error) {
    error.of_tensor(name);
    throw;
  }

  std::string_view name;
  Arena arena;
  SourceChecks checks;
  PieceReader piece_reader;
  Dims shape;  ///< In units: elements, or bytes.
  DType dtype;
  bool is_in_bytes = false, is_line = false;
  std::vector<Piece> pieces;
  std::vector<std::byte> staging;
};

TensorReader::TensorReader(const Catalog& catalog, const Reader& reader, std::uint32_t tensor, Progress& progress,
                           Findings& findings)
    : impl_(std::make_unique<Impl>(catalog, reader, catalog.tensors[tensor], progress, findings)) {}

TensorReader::~TensorReader() = default;

void TensorReader::read(std::int64_t begin, std::int64_t end, std::span<std::byte> out) {
  if (begin == end) return;
  Impl& impl = *impl_;
  const std::int64_t first = impl.is_in_bytes ? checked_bytes(begin, impl.dtype) : begin;
  const std::int64_t last = impl.is_in_bytes ? checked_bytes(end, impl.dtype) : end;
  const std::int64_t unit = impl.unit_bytes();
  assert((last - first) * unit == static_cast<std::int64_t>(out.size()));
  // Lines are read straight into their place; only what is permuted needs the second buffer.
  const std::int64_t staging = impl.is_line ? unit : std::min(kStaging, (last - first) * unit);
  if (static_cast<std::int64_t>(impl.staging.size()) < staging) impl.staging.resize(static_cast<std::size_t>(staging));
  Box box;
  box.dims = impl.shape.size();
  std::byte* to = out.data();
  peel(impl.shape.span(), 0, first, last, box, [&](const Box& part) {
    impl.read_box(part, to);
    to += part.numel() * unit;
  });
}

std::int64_t TensorReader::block_elements(std::int64_t bytes) const {
  const Impl& impl = *impl_;
  const DTypeBlock block = dtype_block(impl.dtype);
  const std::int64_t wanted = std::max<std::int64_t>(1, bytes / impl.unit_bytes());
  std::int64_t row = 1;
  for (int d = impl.shape.size(); d-- > 0 && impl.shape[d] <= wanted / row;)
    row *= std::max<std::int64_t>(1, impl.shape[d]);
  const std::int64_t units = wanted / row * row;
  if (!impl.is_in_bytes) return std::max<std::int64_t>(1, units);
  return std::max<std::int64_t>(1, units / block.bytes) * block.elements;
}

}  // namespace shard
