/// \file
/// Virtual datasets: tensors whose elements are in datasets of other files. Inside formats/hdf5 only.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "formats/hdf5/placed_dataset.h"
#include "libshard/core/hash_table.h"

namespace shard::hdf5 {

/// The virtual datasets of one file. They are collected while the file is read. Then the files that they name are read,
/// each once, and the tensors get their chunks. Elements without a mapping have the fill value, as HDF5 specifies. A
/// missing file or dataset is an error, although HDF5 would read fill values.
class VirtualDatasets {
 public:
  VirtualDatasets(Catalog& catalog, StoredViews& views) : catalog_(catalog), builder_(catalog), views_(views) {}

  /// Records the dataset of an entry for the tensor with that index; `resolve` adds its chunks.
  /// \returns the tensor's dtype and shape
  PlacedDataset add(const Entry& entry, std::uint32_t file, std::uint32_t tensor);

  /// Calls `read` for each file that is named, with a function to which it must pass the file's entries, the file's
  /// index in the catalog and its rank. Then appends the chunks of all tensors. \throws Error kCorruption  a file lacks
  /// a dataset, or has it with a different shape or dtype
  using Take = std::function<void(const Entry& entry, std::uint32_t file, std::int32_t rank)>;
  void resolve(const std::function<void(std::string_view name, const Take& take)>& read);

 private:
  struct Mapping {
    std::string_view file;
    std::string dataset;  ///< The parts joined by '/', without a leading one.
    std::vector<VirtualBox> boxes;
  };
  struct Pending {
    std::uint32_t tensor, file;
    std::span<const std::byte> fill;
    std::vector<Mapping> mappings;
  };

  void read_sources(const std::function<void(std::string_view, const Take&)>& read);
  void append_mapped(const Pending& pending);
  void append_box(const Tensor& tensor, const Mapping& mapping, const PlacedDataset& source, const VirtualBox& box);
  void append_rest(const Pending& pending);

  Catalog& catalog_;
  CatalogBuilder builder_;
  StoredViews& views_;
  std::vector<Pending> pending_;
  /// By file, then by path; empty until read.
  HashMap<std::string, HashMap<std::string, std::optional<PlacedDataset>>> sources_;
};

}  // namespace shard::hdf5
