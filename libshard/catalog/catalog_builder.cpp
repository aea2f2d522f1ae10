#include "libshard/catalog/catalog_builder.h"

#include <vector>

#include "libshard/catalog/bounds.h"
#include "libshard/catalog/layouts/flat_run.h"
#include "libshard/core/box.h"
#include "libshard/core/checked.h"
#include "libshard/core/error.h"

namespace shard {

std::uint32_t CatalogBuilder::add_storage(const Storage& storage) {
  catalog_.storages.push_back(storage);
  return static_cast<std::uint32_t>(catalog_.storages.size() - 1);
}

std::uint32_t CatalogBuilder::add_stored(const StoredTensor& stored) {
  catalog_.stored.push_back(stored);
  return static_cast<std::uint32_t>(catalog_.stored.size() - 1);
}

std::uint32_t CatalogBuilder::add_row_major(std::uint32_t storage, Dims shape, DType dtype, std::int32_t rank) {
  StoredTensor stored;
  stored.shape = shape;
  stored.strides = row_major_strides(*catalog_.arena, shape);
  stored.storage = storage;
  stored.rank = rank;
  stored.dtype = dtype;
  return add_stored(stored);
}

std::uint32_t CatalogBuilder::begin(std::string_view name, Path path, DType dtype, Dims shape) {
  Tensor tensor;
  tensor.name = name;
  tensor.path = path;
  tensor.shape = shape;
  tensor.dtype = dtype;
  return begin(tensor);
}

std::uint32_t CatalogBuilder::begin(const Tensor& like) {
  catalog_.arena->charge(Charge::kEntries);
  const auto index = static_cast<std::uint32_t>(catalog_.tensors.size());
  catalog_.tensors.push_back(like);
  resume(index);
  return index;
}

void CatalogBuilder::resume(std::uint32_t tensor) {
  tensor_ = tensor;
  has_strides_ = false;
  catalog_.tensors[tensor].first_chunk = static_cast<std::uint32_t>(catalog_.chunks.size());
  catalog_.tensors[tensor].chunk_count = 0;
}

void CatalogBuilder::add_chunk(const Chunk& chunk) {
  catalog_.arena->charge(Charge::kChunks);
  catalog_.chunks.push_back(chunk);
  ++tensor().chunk_count;
}

void CatalogBuilder::add_chunk(std::uint32_t stored, std::span<const std::int64_t> offsets,
                               std::span<const std::int64_t> sizes, Dims strides, std::int64_t first) {
  add_chunk({catalog_.arena->dims(offsets), catalog_.arena->dims(sizes), strides, first, stored});
}

void CatalogBuilder::add_whole(std::uint32_t stored) {
  const StoredTensor& whole = catalog_.stored[stored];
  add_chunk({catalog_.arena->zeros(whole.shape.size()), whole.shape, whole.strides, whole.first, stored});
}

/// The part has the strides of the stored tensor, and begins at its element `from`.
void CatalogBuilder::add_part(std::uint32_t stored, std::span<const std::int64_t> offsets,
                              std::span<const std::int64_t> sizes, std::span<const std::int64_t> from) {
  const StoredTensor& whole = catalog_.stored[stored];
  std::int64_t first = whole.first;
  for (std::size_t d = 0; d < from.size(); ++d) {
    first = checked_add(first, checked_mul(from[d], whole.strides[static_cast<int>(d)]));
  }
  add_chunk(stored, offsets, sizes, whole.strides, first);
}

/// An empty chunk is placed at the end of each dimension in which it has no elements.
void CatalogBuilder::add_empty(std::uint32_t stored) {
  const StoredTensor& empty = catalog_.stored[stored];
  const Dims shape = tensor().shape;
  std::vector<std::int64_t> offsets;
  for (int d = 0; d < shape.size(); ++d) offsets.push_back(empty.shape[d] == 0 ? shape[d] : 0);
  add_chunk({catalog_.arena->dims(offsets), empty.shape, empty.strides, empty.first, stored});
}

/// A run of row-major elements is a few boxes. All have the strides of the whole tensor, computed once.
void CatalogBuilder::add_run(std::uint32_t stored, std::int64_t begin, std::int64_t count, std::int64_t first) {
  const Dims shape = tensor().shape;
  if (!has_strides_) strides_ = row_major_strides(*catalog_.arena, shape);
  has_strides_ = true;
  if (count == 0) add_chunk({catalog_.arena->zeros(shape.size()), shape, strides_, first, stored});
  for_each_box_of_run(shape, begin, count, [&](auto offsets, auto sizes, std::int64_t before) {
    add_chunk(stored, offsets, sizes, strides_, first + before);
  });
}

std::uint32_t CatalogBuilder::add_tensor(std::string_view name, Path path, const StoredTensor& stored) {
  try {
    checked_bytes(checked_numel(stored.shape), stored.dtype);
  } catch (Error& error) {
    throw error.of_tensor(name).of_kind(FindingKind::kBadHeader);
  }
  check_view(name, stored.shape, stored.strides, stored.first, stored.dtype, catalog_.storages.at(stored.storage));
  const std::uint32_t index = begin(name, path, stored.dtype, stored.shape);
  add_whole(add_stored(stored));
  return index;
}

void CatalogBuilder::add_alias_chunks(std::uint32_t original) {
  const Tensor from = catalog_.tensors[original];
  for (std::uint32_t i = 0; i < from.chunk_count; ++i) {
    Chunk chunk = catalog_.chunks[from.first_chunk + i];
    chunk.stored = add_stored(StoredTensor(catalog_.stored[chunk.stored]));  // The array may be reallocated.
    add_chunk(chunk);
  }
}

CatalogMark::CatalogMark(Catalog& catalog, Storages storages)
    : catalog_(&catalog),
      of_storages_(storages),
      tensors_(catalog.tensors.size()),
      chunks_(catalog.chunks.size()),
      stored_(catalog.stored.size()),
      storages_(catalog.storages.size()),
      objects_(catalog.objects.size()) {}

CatalogMark::~CatalogMark() { roll_back(); }

void CatalogMark::roll_back() noexcept {
  if (catalog_ == nullptr) return;
  catalog_->tensors.resize(tensors_);
  catalog_->chunks.resize(chunks_);
  catalog_->stored.resize(stored_);
  catalog_->objects.resize(objects_);
  if (of_storages_ == Storages::kRemoved) catalog_->storages.resize(storages_);
  catalog_ = nullptr;
}

}  // namespace shard
