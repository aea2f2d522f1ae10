/// \file
/// Small catalogs, written out, for tests of libshard/catalog.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include "libshard/catalog/catalog_builder.h"
#include "libshard/core/box.h"
#include "libshard/core/checked.h"

namespace shard::test {

using Numbers = std::vector<std::int64_t>;

inline std::uint32_t add_storage(Catalog& catalog, std::int64_t bytes) {
  if (catalog.files.empty()) catalog.files.push_back({"file", 0, -1});
  catalog.storages.push_back({.offset = 0, .bytes = bytes});
  return static_cast<std::uint32_t>(catalog.storages.size() - 1);
}

inline Dims row_major(Catalog& catalog, const Numbers& shape) {
  Numbers strides(shape.size());
  row_major_strides(shape, strides);
  return catalog.arena->dims(strides);
}

/// A view of a storage. Empty `strides`: row-major.
inline std::uint32_t add_view(Catalog& catalog, std::string_view name, std::uint32_t storage, DType dtype,
                              const Numbers& shape, const Numbers& strides = {}, std::int64_t first = 0,
                              Path path = {}) {
  StoredTensor stored;
  stored.shape = catalog.arena->dims(shape);
  stored.strides = strides.empty() ? row_major(catalog, shape) : catalog.arena->dims(strides);
  stored.first = first;
  stored.storage = storage;
  stored.dtype = dtype;
  return CatalogBuilder(catalog).add_tensor(catalog.arena->copy(name), path, stored);
}

/// A row-major tensor with a separate storage.
inline std::uint32_t add_tensor(Catalog& catalog, std::string_view name, const Numbers& shape,
                                DType dtype = DType::kFloat32, Path path = {}) {
  const std::uint32_t storage = add_storage(catalog, checked_bytes(checked_numel(shape), dtype));
  return add_view(catalog, name, storage, dtype, shape, {}, 0, path);
}

struct BoxOfRank {
  Numbers offsets, sizes;
  std::int32_t rank = -1;
};

/// A tensor of uint8 with a separate storage for every box.
inline void add_chunked(Catalog& catalog, std::string_view name, const Numbers& shape,
                        const std::vector<BoxOfRank>& boxes) {
  Tensor tensor;
  tensor.name = catalog.arena->copy(name);
  tensor.shape = catalog.arena->dims(shape);
  tensor.dtype = DType::kUint8;
  tensor.first_chunk = static_cast<std::uint32_t>(catalog.chunks.size());
  tensor.chunk_count = static_cast<std::uint32_t>(boxes.size());
  for (const BoxOfRank& box : boxes) {
    StoredTensor stored;
    stored.shape = catalog.arena->dims(box.sizes);
    stored.strides = row_major(catalog, box.sizes);
    stored.storage = add_storage(catalog, checked_numel(box.sizes));
    stored.rank = box.rank;
    stored.dtype = DType::kUint8;
    Chunk chunk;
    chunk.offsets = catalog.arena->dims(box.offsets);
    chunk.sizes = stored.shape;
    chunk.strides = stored.strides;
    chunk.stored = static_cast<std::uint32_t>(catalog.stored.size());
    catalog.stored.push_back(stored);
    catalog.chunks.push_back(chunk);
  }
  catalog.tensors.push_back(tensor);
}

inline Object& add_object(Catalog& catalog, std::string_view name, Value* value, Path path = {}) {
  catalog.objects.push_back({catalog.arena->copy(name), path, value, -1});
  return catalog.objects.back();
}

/// A path of string keys and, for numbers, list indices.
inline Path make_path(Catalog& catalog, std::initializer_list<std::string_view> parts) {
  const std::span<PathPart> path = catalog.arena->array<PathPart>(parts.size());
  std::size_t i = 0;
  for (const std::string_view part : parts) {
    const bool is_index = !part.empty() && part.find_first_not_of("0123456789") == std::string_view::npos;
    path[i] = is_index ? PathPart::of_index(std::stoll(std::string(part))) : PathPart::of_key(part);
    ++i;
  }
  return Path(path);
}

inline Numbers to_numbers(Dims dims) { return {dims.begin(), dims.end()}; }

template <class Entry>
std::vector<std::string> names_of(const std::vector<Entry>& entries) {
  std::vector<std::string> names;
  for (const Entry& entry : entries) names.emplace_back(entry.name);
  return names;
}

}  // namespace shard::test
