#include "libshard/exec/in_order.h"

#include <fmt/format.h>

#include <algorithm>

#include "libshard/core/checked.h"
#include "libshard/core/error.h"
#include "libshard/io/scratch_file.h"

namespace shard {

namespace {

/// \throws Error kResource  a tensor of so many bytes is out of proportion to the files that hold it.
void check_size(const Catalog& catalog, const Tensor& tensor, std::int64_t bytes) {
  std::int64_t most = kInOrderFreely;
  for (const Chunk& chunk : catalog.chunks_of(tensor)) {
    const File& file = catalog.files[catalog.storages[catalog.stored[chunk.stored].storage].file];
    most = std::max(most, checked_mul(kInOrderTimes, file.bytes));
  }
  if (bytes <= most) return;
  throw Error(ErrorCode::kResource, fmt::format("cannot put {} bytes into a temporary file", bytes))
      .expected(fmt::format("at most {}, by the size of the source file", most))
      .found(bytes);
}

/// A catalog of one file that holds the tensor's elements and nothing else.
Catalog catalog_in_order(const Tensor& source, std::uint32_t index, std::int64_t bytes) {
  Catalog target;
  target.files.push_back({"temporary file", bytes});
  target.storages.push_back({.offset = 0, .bytes = bytes});
  std::vector<std::int64_t> strides(static_cast<std::size_t>(source.shape.size()));
  row_major_strides(source.shape.span(), strides);
  StoredTensor stored;
  stored.shape = source.shape;
  stored.strides = target.arena->dims(strides);
  stored.dtype = source.dtype;
  target.stored.push_back(stored);
  target.chunks.push_back(
      {.offsets = target.arena->zeros(source.shape.size()), .sizes = source.shape, .strides = stored.strides});
  Tensor tensor;
  tensor.name = source.name;
  tensor.shape = source.shape;
  tensor.dtype = source.dtype;
  tensor.chunk_count = 1;
  tensor.source = index;
  target.tensors.push_back(tensor);
  return target;
}

}  // namespace

std::unique_ptr<RandomReader> copy_in_order(const Catalog& catalog, const Reader& reader, std::uint32_t tensor,
                                            const ExecuteOptions& options) {
  const Tensor& source = catalog.tensors[tensor];
  const std::int64_t bytes = checked_bytes(checked_numel(source.shape.span()), source.dtype);
  check_size(catalog, source, bytes);
  const Catalog target = catalog_in_order(source, tensor, bytes);
  ScratchFile scratch = make_scratch_file(bytes);
  FileWriter* const files[] = {scratch.writer.get()};
  const Plan plan =
      plan_copies(catalog, target, {.max_memory_bytes = options.max_memory_bytes, .threads = options.threads});
  Progress progress;
  execute(plan, catalog, reader, target, files, options, progress);
  return std::move(scratch.reader);
}

}  // namespace shard
