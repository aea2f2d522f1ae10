/// \file
/// CatalogBuilder: adds tensors to a catalog, one after the other. Readers, targets and maps use it.
///
/// The builder sets the indices between the catalog's arrays and charges the catalog's budget: kEntries for each
/// tensor, kChunks for each chunk with its stored tensor. A catalog without a budget (a target) charges nothing.
///
/// Nothing is sorted or checked for coverage. validate_catalog does both.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "libshard/catalog/catalog.h"

namespace shard {

/// Ownership: the catalog must outlive the builder. Several builders may add to one catalog in turn.
/// Every add function \throws Error kCorruption  the budget is spent.
class CatalogBuilder {
 public:
  explicit CatalogBuilder(Catalog& catalog) : catalog_(catalog) {}

  Catalog& catalog() const { return catalog_; }

  /// \returns its index.
  std::uint32_t add_storage(const Storage& storage);
  /// \returns its index.
  std::uint32_t add_stored(const StoredTensor& stored);
  /// A row-major stored tensor that fills its storage. \returns its index.
  std::uint32_t add_row_major(std::uint32_t storage, Dims shape, DType dtype, std::int32_t rank);

  /// Starts a tensor, without chunks. It receives the chunks that are added next. \returns its index.
  std::uint32_t begin(std::string_view name, Path path, DType dtype, Dims shape);
  /// Does the same, with the other fields of `like`.
  std::uint32_t begin(const Tensor& like);
  /// Adds the next chunks to a tensor that was started before. \pre it has no chunks
  void resume(std::uint32_t tensor);
  /// The tensor that receives chunks. \pre there is one. Valid until the next one starts.
  Tensor& tensor() { return catalog_.tensors[tensor_]; }

  void add_chunk(const Chunk& chunk);
  /// Does the same, with copies of `offsets` and `sizes`.
  void add_chunk(std::uint32_t stored, std::span<const std::int64_t> offsets, std::span<const std::int64_t> sizes,
                 Dims strides, std::int64_t first);
  /// The tensor is the whole stored tensor.
  void add_whole(std::uint32_t stored);
  /// The box of `sizes` at `offsets` is the box of the stored tensor at `from`.
  /// \throws Error kCorruption  an offset overflows.
  void add_part(std::uint32_t stored, std::span<const std::int64_t> offsets, std::span<const std::int64_t> sizes,
                std::span<const std::int64_t> from);
  /// Adds a chunk for a stored tensor without elements. It is at the end of every dimension that has no elements, like
  /// the last, empty slice of a tensor.
  void add_empty(std::uint32_t stored);
  /// Elements [begin, begin + count) of the tensor in row-major order are stored consecutively, from element `first` of
  /// the storage. A tensor without elements needs a run of 0.
  void add_run(std::uint32_t stored, std::int64_t begin, std::int64_t count, std::int64_t first);

  /// Adds a tensor that is one chunk of one stored tensor. \returns its index.
  /// \throws Error kCorruption  shape or bytes overflow, or the view leaves its storage.
  std::uint32_t add_tensor(std::string_view name, Path path, const StoredTensor& stored);
  /// Adds the chunks of a different tensor to this one, each with a separate stored tensor over the same storage, as
  /// formats with aliases describe them. \pre that tensor is complete
  void add_alias_chunks(std::uint32_t original);

 private:
  Catalog& catalog_;
  std::uint32_t tensor_ = kNoIndex;
  Dims strides_;  ///< The row-major strides of the tensor, after the first add_run.
  bool has_strides_ = false;
};

/// Removes everything that was added to a catalog after the mark was made: tensors, chunks, stored tensors and objects.
/// Storages stay, because readers share them between tensors, except for marks made with Storages::kRemoved.
class CatalogMark {
 public:
  enum class Storages : bool { kKept, kRemoved };

  explicit CatalogMark(Catalog& catalog, Storages storages = Storages::kKept);
  CatalogMark(const CatalogMark&) = delete;
  CatalogMark& operator=(const CatalogMark&) = delete;
  /// Rolls back unless `keep` was called.
  ~CatalogMark();

  void keep() noexcept { catalog_ = nullptr; }
  void roll_back() noexcept;

 private:
  Catalog* catalog_;
  Storages of_storages_;
  std::size_t tensors_, chunks_, stored_, storages_, objects_;
};

}  // namespace shard
