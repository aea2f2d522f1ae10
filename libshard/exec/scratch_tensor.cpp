#include "libshard/exec/scratch_tensor.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "libshard/catalog/catalog_builder.h"
#include "libshard/core/checked.h"
#include "libshard/core/error.h"
#include "libshard/exec/runs.h"
#include "libshard/io/scratch_file.h"

namespace shard {

namespace {

void check_size(const Catalog& catalog, std::span<const Chunk> chunks, std::int64_t bytes) {
  std::int64_t most = ScratchTensor::kFreely;
  for (const Chunk& chunk : chunks) {
    const File& file = catalog.file_of(chunk);
    most = std::max(most, checked_mul(ScratchTensor::kTimes, file.bytes));
  }
  if (bytes <= most) return;
  throw Error(ErrorCode::kResource, fmt::format("cannot use a temporary file of {} bytes", bytes))
      .expected(fmt::format("at most {} for a source file of this size", most))
      .found(bytes);
}

/// The layout of the elements in the file.
struct Placing {
  Numbers sizes{};      ///< The sizes that are written: 1 in dimensions that repeat elements.
  Numbers strides{};    ///< The strides of the written elements.
  Numbers repeating{};  ///< The strides of the tensor: 0 in dimensions that repeat elements.
};

Placing place_elements(const Tensor& tensor, std::span<const Chunk> chunks, ScratchTensor::Order order) {
  Placing placing;
  const auto dims = static_cast<std::size_t>(tensor.shape.size());
  const bool is_packed = dtype_block(tensor.dtype).elements > 1;  // Elements that share bytes must stay adjacent.
  std::array<bool, kMaxDims> repeats{};
  for (std::size_t d = 0; d < dims; ++d) {
    const auto i = static_cast<int>(d);
    repeats[d] = !is_packed && std::ranges::all_of(chunks, [i](const Chunk& chunk) { return chunk.strides[i] == 0; });
    placing.sizes[d] = repeats[d] ? 1 : tensor.shape[i];
  }
  const std::span<const std::int64_t> sizes = std::span(placing.sizes).first(dims);
  if (order == ScratchTensor::Order::kRowMajor || is_packed) {
    row_major_strides(sizes, std::span(placing.strides).first(dims));
  } else {
    pack(sizes, chunks.front().strides.span(), placing.strides);
  }
  for (std::size_t d = 0; d < dims; ++d) placing.repeating[d] = repeats[d] ? 0 : placing.strides[d];
  return placing;
}

/// Adds the tensor, with the written part as its only chunk.
void add_tensor(Catalog& catalog, const Tensor& source, std::uint32_t index, Dims sizes, Dims strides) {
  CatalogBuilder builder(catalog);
  StoredTensor stored;
  stored.shape = sizes;
  stored.strides = strides;
  stored.dtype = source.dtype;
  builder.begin(source.name, {}, source.dtype, source.shape);
  builder.tensor().source = index;
  builder.add_whole(builder.add_stored(stored));
}

}  // namespace

ScratchTensor::ScratchTensor(const Catalog& source, const Reader& reader, std::uint32_t index, Order order,
                             const ExecuteOptions& options) {
  const Tensor& tensor = source.tensors[index];
  const std::span<const Chunk> chunks = source.chunks_of(tensor);
  const Placing placing = place_elements(tensor, chunks, order);
  const auto dims = static_cast<std::size_t>(tensor.shape.size());
  const Dims sizes = catalog_.arena->dims(std::span(placing.sizes).first(dims));
  const std::int64_t bytes = checked_bytes(checked_numel(sizes.span()), tensor.dtype);
  check_size(source, chunks, bytes);
  catalog_.files.push_back({"temporary file", bytes});
  catalog_.storages.push_back({.offset = 0, .bytes = bytes});
  add_tensor(catalog_, tensor, index, sizes, catalog_.arena->dims(std::span(placing.strides).first(dims)));

  ScratchFile scratch = make_scratch_file(bytes);
  FileWriter* const files[] = {scratch.writer.get()};
  const Plan plan =
      plan_copies(source, catalog_, {.max_memory_bytes = options.max_memory_bytes, .threads = options.threads});
  Progress progress;
  execute(plan, source, reader, catalog_, files, options, progress);
  file_ = std::move(scratch.reader);
  Chunk& chunk = catalog_.chunks.front();
  chunk.sizes = tensor.shape;
  chunk.strides = catalog_.arena->dims(std::span(placing.repeating).first(dims));
}

}  // namespace shard
