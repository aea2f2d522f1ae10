/// \file
/// How the storages that are not plain bytes of a file are read. Inside formats/hdf5 only.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "formats/hdf5/described.h"
#include "formats/parts/decoded_view/decoded_view.h"
#include "formats/parts/decoded_view/view_cache.h"
#include "libshard/catalog/catalog.h"

namespace shard::hdf5 {

/// Ownership: spans lie in the catalog's arena.
struct StoredView {
  enum class Kind : std::uint8_t {
    kFile,      ///< Bytes of the file from `place.offset`; `code` says how they differ from plain ones.
    kConstant,  ///< `data` again and again; zeros where it is empty.
    kChunk,     ///< A chunk with filters.
  };
  Kind kind = Kind::kFile;
  std::span<const std::byte> data{};
  ChunkPlace place{};
  std::span<const Filter> filters{};
  decoded_view::ElementCode code{};
};

/// Threads: `get` is safe once all are added.
class StoredViews {
 public:
  /// \pre storages come in ascending order
  void add(std::uint32_t storage, const StoredView& view) { views_.push_back({storage, view}); }
  /// The elements that a storage of kind kConstant repeats. \pre `storage` is one
  std::span<const std::byte> fill_of(std::uint32_t storage) const;
  /// The elements of a storage that is not plain; `file` is the open file that holds it.
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

}  // namespace shard::hdf5
