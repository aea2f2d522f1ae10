/// \file
/// Adds the elements of a dataset to a catalog. Inside formats/hdf5 only.
///
/// A dataset is a grid of equal boxes, row-major; the last box of a dimension may extend past the dataset. A contiguous
/// or compact dataset is a grid of one box. A chunked one has one stored tensor per chunk. Chunks that were never
/// written share one stored tensor of fill values; runs of them become chunks of a tensor that are as large as
/// possible.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "formats/hdf5/datatype.h"
#include "formats/hdf5/described.h"
#include "formats/parts/decoded_view/decoded_view.h"
#include "formats/parts/decoded_view/view_cache.h"
#include "libshard/catalog/catalog_builder.h"

namespace shard::hdf5 {

/// How the elements of a storage are read. Ownership: spans are stored in the catalog's arena.
struct StoredView {
  enum class Kind : std::uint8_t {
    kFile,      ///< Bytes of the file from `place.offset`; `code` defines how they differ from plain ones.
    kConstant,  ///< Repeats `data`; zeros if it is empty.
    kChunk,     ///< A chunk with filters.
  };
  Kind kind = Kind::kFile;
  std::span<const std::byte> data{};
  ChunkPlace place{};
  std::span<const Filter> filters{};
  decoded_view::ElementCode code{};
};

/// The views of storages. Threads: `get` is safe once all are added.
class StoredViews {
 public:
  /// \pre storages are added in ascending order
  void add(std::uint32_t storage, const StoredView& view) { views_.push_back({storage, view}); }
  /// The elements that a storage of kind kConstant repeats. \pre `storage` is of that kind
  std::span<const std::byte> fill_of(std::uint32_t storage) const;
  /// The elements of a storage that is not plain; `file` is its open file.
  std::shared_ptr<const RandomReader> get(const Catalog& catalog, std::uint32_t storage,
                                          const std::shared_ptr<const RandomReader>& file) const;

 private:
  struct Numbered {
    std::uint32_t storage;
    StoredView view;
  };

  const StoredView& view_of(std::uint32_t storage) const;

  std::vector<Numbered> views_;
  mutable decoded_view::ViewCache cache_;
};

struct PlacedDataset {
  DType dtype{};
  std::vector<std::int64_t> shape;      ///< Includes the dimensions of an array type.
  std::vector<std::int64_t> box;        ///< The shape of each box of the grid.
  bool is_enum = false;                 ///< The elements are an enum's values, whose names are lost.
  std::vector<std::uint32_t> stored{};  ///< By number in the grid; empty for a dataset without elements.
  /// The stored tensor of all boxes that were never written; kNoIndex if there are none.
  std::uint32_t fill_stored = kNoIndex;
};

/// The type of a dataset's elements, by its attribute `dtype` too. \throws Error kUnsupported  they have no dtype
ElementType element_of(const Entry& entry);
[[noreturn]] void refuse_type(const Type& type);

/// Adds the storages and stored tensors of a dataset that is not virtual to the catalog.
/// \throws Error kUnsupported  the datatype has no dtype
/// \throws Error kCorruption  shapes, offsets and sizes contradict one another, or the budget is exhausted.
PlacedDataset place_dataset(Catalog& catalog, StoredViews& views, std::uint32_t file, std::int32_t rank,
                            const Entry& entry);

/// Adds the chunks of a tensor's box at `to`, which is the dataset's box of `sizes` at `from`. `dims` has the dataset's
/// dimension for each dimension of the tensor, or -1 for one of size 1 that the dataset lacks.
void append_chunks(CatalogBuilder& builder, StoredViews& views, const PlacedDataset& dataset,
                   std::span<const std::int64_t> from, std::span<const std::int64_t> sizes,
                   std::span<const std::int64_t> to, std::span<const int> dims);

/// Adds the chunks of a tensor that is the whole dataset.
void append_whole(CatalogBuilder& builder, StoredViews& views, const PlacedDataset& dataset);

/// The fill value of a dataset as plain elements, in the arena; empty for zeros.
std::span<const std::byte> fill_of(Arena& arena, const Entry& entry, const ElementType& element);

/// Adds a storage of fill values and a stored tensor of `shape` over it. \returns the stored tensor's index
std::uint32_t add_constant(CatalogBuilder& builder, StoredViews& views, std::uint32_t file, std::int32_t rank,
                           DType dtype, std::span<const std::int64_t> shape, std::span<const std::byte> fill);

}  // namespace shard::hdf5
