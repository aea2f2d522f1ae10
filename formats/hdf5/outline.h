/// \file
/// The content of one HDF5 file to be written, as plain data: groups, datasets and their attributes. Inside
/// formats/hdf5 only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "formats/hdf5/kept_content.h"
#include "formats/hdf5/values.h"
#include "libshard/catalog/catalog.h"

namespace shard::hdf5 {

/// A box of a virtual dataset, and the whole dataset of a different file that provides it. Elements are counted as in
/// the file: as bytes for packed dtypes.
struct OutgoingBox {
  std::vector<std::int64_t> offsets, sizes;
  std::string file;     ///< Relative to the folder.
  std::string dataset;  ///< The path from the root.
};

struct OutgoingDataset {
  DType dtype{};
  std::vector<std::int64_t> shape;  ///< Counted in elements of the file; empty for a scalar.
  std::int64_t offset = -1, bytes = 0;
  std::vector<OutgoingBox> boxes{};  ///< If not empty, the dataset is virtual and has no elements of its own.
  /// For an object: type, shape and elements, which are part of the metadata.
  std::optional<OutgoingContent> content{};
  std::vector<std::pair<std::string, OutgoingContent>> attributes{};
  int names = 0;  ///< The number of its names.
};

/// A group if the dataset is `kNoIndex`.
struct OutgoingNode {
  std::uint32_t dataset = kNoIndex;
  std::map<std::string, OutgoingNode, std::less<>> members{};
  std::vector<std::pair<std::string, OutgoingContent>> attributes{};
};

/// Built in this order: datasets, then objects, then attributes of the root.
class Outline {
 public:
  /// The keys of a tensor or object, as the catalog has it.
  struct Keys {
    std::string_view name;
    Path path;
  };

  /// Adds a dataset of a tensor of `dtype` and `shape`, in `bytes` bytes at `offset`. \returns its number.
  std::uint32_t add_dataset(DType dtype, Dims shape, std::int64_t offset, std::int64_t bytes);
  /// Adds a virtual dataset of the tensor. \returns its number.
  std::uint32_t add_virtual(DType dtype, Dims shape, std::int64_t bytes, std::vector<OutgoingBox> boxes);
  /// Adds a name to a dataset. `suffix` is appended to the last link without encoding. \returns the path from the root.
  std::string link(const Keys& keys, std::uint32_t dataset, std::string_view suffix = {});

  /// Adds an attribute or dataset as its source stored it. \pre datasets were added.
  /// \throws Error kUnsupported  a key is too long for an attribute; with the name.
  void add_kept(const KeptContent& kept);
  /// Adds an object: an empty dict becomes an empty group, any other value an attribute.
  /// \throws Error kUnsupported  the value cannot be an attribute, or its key is too long for one; with the name.
  void add_object(const Keys& keys, const Value& value);
  void add_root_attribute(std::string_view name, OutgoingContent content);
  /// Adds a text of Catalog::metadata.
  void add_text(std::string_view key, std::string_view text);
  /// Adds the root's attribute about encoded names, if necessary. Called last.
  void finish();

  const OutgoingNode& root() const { return root_; }
  const std::vector<OutgoingDataset>& datasets() const { return datasets_; }

 private:
  OutgoingNode& group_of(const Keys& keys);
  std::string encoded(std::string name, std::string_view key);
  OutgoingDataset* dataset_named(OutgoingNode& group, std::string_view key);
  bool add_to_dataset(OutgoingNode& group, std::string_view key, const OutgoingContent& content);
  bool add_kept_to_dataset(OutgoingNode& group, std::string_view key, const KeptContent& kept);

  OutgoingNode root_;
  std::vector<OutgoingDataset> datasets_;
  std::set<std::size_t> key_sizes_;  ///< The lengths of the datasets' names before they are encoded.
  bool has_encoded_names_ = false;
};

}  // namespace shard::hdf5
