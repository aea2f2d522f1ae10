#include "formats/deepspeed/catalog_builder.h"

#include <fmt/format.h>

#include <algorithm>

#include "libshard/catalog/flat_run.h"
#include "libshard/core/box.h"
#include "libshard/core/error.h"

namespace shard::deepspeed {

void CatalogBuilder::begin(std::string_view name, Path path, DType dtype, Dims shape) {
  if (by_name_.contains(name)) {
    throw Error(ErrorCode::kCorruption, fmt::format("the save holds '{}' twice", name))
        .of_tensor(name)
        .of_kind(FindingKind::kDuplicateName);
  }
  arena_.charge(Charge::kEntries);
  by_name_[name] = static_cast<std::uint32_t>(catalog_.tensors.size());
  Tensor& tensor = catalog_.tensors.emplace_back();
  tensor.name = name;
  tensor.path = path;
  tensor.dtype = dtype;
  tensor.shape = shape;
  tensor.first_chunk = static_cast<std::uint32_t>(catalog_.chunks.size());
}

std::uint32_t CatalogBuilder::add_stored(const HeldView& held) {
  arena_.charge(Charge::kChunks);
  StoredTensor stored = torch_save::stored_tensor(held.view, files_.storage_of(held.file, held.view));
  stored.rank = static_cast<std::int32_t>(held.rank);
  catalog_.stored.push_back(stored);
  return static_cast<std::uint32_t>(catalog_.stored.size() - 1);
}

void CatalogBuilder::add_chunk(std::uint32_t stored, std::span<const std::int64_t> offsets,
                               std::span<const std::int64_t> sizes, Dims strides, std::int64_t first) {
  arena_.charge(Charge::kChunks);
  catalog_.chunks.push_back({arena_.dims(offsets), arena_.dims(sizes), strides, first, stored});
  ++catalog_.tensors.back().chunk_count;
}

void CatalogBuilder::add_whole(std::string_view name, Path path, std::span<const HeldView> copies) {
  const torch_save::TensorView& first = copies.front().view;
  begin(name, path, first.dtype, first.shape);
  for (const HeldView& held : copies) {
    if (held.view.dtype != first.dtype || held.view.shape != first.shape) {
      throw Error(ErrorCode::kCorruption, fmt::format("ranks hold '{}' in different shapes or dtypes", name))
          .in_file(catalog_.files[held.file].path)
          .of_tensor(name)
          .of_kind(FindingKind::kReplicaMismatch);
    }
    add_chunk(add_stored(held), arena_.zeros(held.view.shape.size()), held.view.shape, held.view.strides,
              held.view.first);
  }
}

void CatalogBuilder::add_row(std::string_view name, Path path, Dims shape, const HeldView& row) {
  begin(name, path, row.view.dtype, shape);
  const std::uint32_t stored = add_stored(row);
  add_chunk(stored, arena_.zeros(shape.size()), shape, row_major_strides(arena_, shape), row.view.first);
}

void CatalogBuilder::add_flat(std::string_view name, Path path, Dims shape, std::span<const FlatRun> runs,
                              std::span<const std::uint32_t> buffers, DType dtype) {
  begin(name, path, dtype, shape);
  const Dims strides = row_major_strides(arena_, shape);
  if (runs.empty()) {
    const std::uint32_t any = *std::ranges::find_if(buffers, [](std::uint32_t each) { return each != kNoIndex; });
    add_chunk(any, arena_.zeros(shape.size()), shape, strides, catalog_.stored[any].first);
  }
  for (const FlatRun& run : runs) {
    const std::uint32_t buffer = buffers[static_cast<std::size_t>(run.rank)];
    if (buffer == kNoIndex) {
      throw Error(ErrorCode::kCorruption, fmt::format("rank {} does not hold its part of '{}'", run.rank, name))
          .of_tensor(name)
          .of_rank(static_cast<int>(run.rank))
          .of_kind(FindingKind::kGap);
    }
    const std::int64_t first = catalog_.stored[buffer].first + run.first;
    for_each_box_of_run(shape, run.begin, run.count, [&](auto offsets, auto sizes, std::int64_t before) {
      add_chunk(buffer, offsets, sizes, strides, first + before);
    });
  }
}

}  // namespace shard::deepspeed
