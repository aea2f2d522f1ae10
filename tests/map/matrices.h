/// \file
/// Checkpoints of small matrices of distinct integers, and their catalogs, element by element.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "libshard/catalog/catalog_builder.h"
#include "libshard/catalog/selection/selection.h"
#include "libshard/core/box.h"
#include "libshard/core/checked.h"
#include "libshard/map/passes/apply.h"

namespace shard::test {

/// Rows; with one column it represents a vector.
using Matrix = std::vector<std::vector<std::int64_t>>;
using Model = std::map<std::string, Matrix>;

inline Matrix counted(std::int64_t rows, std::int64_t columns, std::int64_t first) {
  Matrix matrix(static_cast<std::size_t>(rows));
  for (auto& row : matrix) {
    for (std::int64_t i = 0; i < columns; ++i) row.push_back(first++);
  }
  return matrix;
}

inline Matrix row_part(const Matrix& matrix, std::int64_t part, std::int64_t parts) {
  const auto rows = std::ssize(matrix) / parts;
  return {matrix.begin() + part * rows, matrix.begin() + (part + 1) * rows};
}

inline Matrix column_part(const Matrix& matrix, std::int64_t part, std::int64_t parts) {
  Matrix result;
  for (const auto& row : matrix) {
    const auto columns = std::ssize(row) / parts;
    result.emplace_back(row.begin() + part * columns, row.begin() + (part + 1) * columns);
  }
  return result;
}

inline void append_rows(Matrix& matrix, const Matrix& more) { matrix.insert(matrix.end(), more.begin(), more.end()); }

inline Matrix padded_to(Matrix matrix, std::int64_t rows) {
  matrix.resize(static_cast<std::size_t>(rows), std::vector<std::int64_t>(matrix.front().size()));
  return matrix;
}

inline std::vector<std::int64_t> elements_of(const Matrix& matrix) {
  std::vector<std::int64_t> all;
  for (const auto& row : matrix) all.insert(all.end(), row.begin(), row.end());
  return all;
}

/// Elements of tensors, row-major, by name (and rank).
using Flat = std::map<std::pair<std::string, int>, std::vector<std::int64_t>>;

inline Flat flat(const Model& model, int rank = -1) {
  Flat all;
  for (const auto& [name, matrix] : model) all[{name, rank}] = elements_of(matrix);
  return all;
}
inline Flat flat(const std::vector<Model>& ranks) {
  Flat all;
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    all.merge(flat(ranks[rank], ranks.size() > 1 ? static_cast<int>(rank) : -1));
  }
  return all;
}

/// Elements by storage.
using Elements = std::vector<std::vector<std::int64_t>>;

/// The ranks' stored tensors, as a catalog.
class Stored {
 public:
  explicit Stored(const std::vector<Model>& ranks) {
    catalog_.files.push_back({"f", 1 << 20, -1});
    for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
      for (const auto& [name, matrix] : ranks[rank]) add(name, matrix, ranks.size() > 1 ? static_cast<int>(rank) : -1);
    }
    validate_catalog(catalog_);
  }
  const Catalog& catalog() const { return catalog_; }
  const Elements& elements() const { return elements_; }

 private:
  void add(const std::string& name, const Matrix& matrix, int rank) {
    std::vector<std::int64_t> shape{std::ssize(matrix)};
    if (!matrix.empty() && matrix.front().size() > 1) shape.push_back(std::ssize(matrix.front()));
    elements_.push_back(elements_of(matrix));
    StoredTensor stored;
    stored.shape = catalog_.arena->dims(shape);
    stored.strides = row_major_strides(*catalog_.arena, shape);
    stored.dtype = DType::kInt64;
    stored.rank = rank;
    stored.storage = static_cast<std::uint32_t>(catalog_.storages.size());
    catalog_.storages.push_back({.offset = 0, .bytes = 8 * std::ssize(elements_.back())});
    CatalogBuilder(catalog_).add_tensor(catalog_.arena->copy(name), {}, stored);
    catalog_.tensors.back().rank = rank;
  }

  Catalog catalog_;
  Elements elements_;
};

/// Calls `visit(place in the tensor, number in the storage)` for each element of a chunk.
template <class Visit>
void for_each_element(const Tensor& tensor, const Chunk& chunk, Visit&& visit) {
  if (is_empty(chunk.sizes)) return;
  std::vector<std::int64_t> at(static_cast<std::size_t>(chunk.sizes.size())),
      sizes(chunk.sizes.begin(), chunk.sizes.end());
  do {
    std::int64_t place = 0, number = chunk.first;
    for (int d = 0; d < chunk.sizes.size(); ++d) {
      const std::int64_t i = at[static_cast<std::size_t>(d)];
      place = place * tensor.shape[d] + chunk.offsets[d] + i;
      number += i * chunk.strides[d];
    }
    visit(static_cast<std::size_t>(place), static_cast<std::size_t>(number));
  } while (!at.empty() && next_index<std::int64_t>(at, sizes) >= 0);
}

/// A tensor's elements; -1 if no chunk has one; replicas must agree.
inline std::vector<std::int64_t> read_tensor(const Catalog& catalog, const Tensor& tensor, const Elements& elements) {
  std::vector<std::int64_t> read(static_cast<std::size_t>(checked_numel(tensor.shape)), -1);
  for (const Chunk& chunk : catalog.chunks_of(tensor)) {
    const auto& storage = elements[catalog.stored[chunk.stored].storage];
    for_each_element(tensor, chunk, [&](std::size_t place, std::size_t number) {
      read[place] = read[place] == -1 || read[place] == storage.at(number) ? storage.at(number) : -2;
    });
  }
  return read;
}

inline Flat read_all(const Catalog& catalog, const Elements& elements) {
  Flat all;
  for (const Tensor& tensor : catalog.tensors) {
    all[{std::string(tensor.name), tensor.rank}] = read_tensor(catalog, tensor, elements);
  }
  return all;
}

inline Selection everything(const Catalog& catalog) {
  Selection all;
  for (std::uint32_t i = 0; i < catalog.tensors.size(); ++i) {
    all.tensors.push_back({i, catalog.tensors[i].dtype, catalog.tensors[i].name, {}});
  }
  return all;
}

/// The content of an applied map's stored tensors after its planned target was filled; -1 if nothing was written.
inline Flat copied(const Catalog& logical, const Elements& from, const AppliedMap& applied) {
  const Catalog placed = applied.ranked_target("test", INT64_MAX);
  const auto first_padding = static_cast<std::uint32_t>(logical.tensors.size());
  const Catalog planned = applied.plan_target(placed, first_padding);
  Elements to;
  for (const Storage& storage : placed.storages) to.emplace_back(static_cast<std::size_t>(storage.bytes / 8), -1);
  for (const Tensor& tensor : planned.tensors) {
    std::vector<std::int64_t> values(static_cast<std::size_t>(checked_numel(tensor.shape)));
    if (tensor.source < first_padding) values = read_tensor(logical, logical.tensors[tensor.source], from);
    for (const Chunk& chunk : planned.chunks_of(tensor)) {
      auto& storage = to[planned.stored[chunk.stored].storage];
      for_each_element(tensor, chunk, [&](std::size_t place, std::size_t number) {
        storage.at(number) = storage.at(number) == -1 ? values[place] : -2;
      });
    }
  }
  return read_all(placed, to);
}

}  // namespace shard::test
