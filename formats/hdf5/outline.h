/// \file
/// What one HDF5 file that is to be written holds, as plain data: groups, datasets and their attributes. Inside
/// formats/hdf5 only.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "formats/hdf5/kept_content.h"
#include "formats/hdf5/values.h"
#include "libshard/catalog/catalog.h"

namespace shard::hdf5 {

/// A box of a virtual dataset and the whole dataset of another file that it is made of. Elements are those of the file:
/// bytes for packed dtypes.
struct OutgoingBox {
  std::vector<std::int64_t> offsets, sizes;
  std::string file;     ///< Relative to the folder.
  std::string dataset;  ///< The path from the root.
};

struct OutgoingDataset {
  DType dtype{};
  std::vector<std::int64_t> shape;  ///< Of elements in the file; none: a scalar.
  std::int64_t offset = -1, bytes = 0;
  std::vector<OutgoingBox> boxes{};          ///< Not empty: virtual, without elements of its own.
  std::optional<OutgoingContent> content{};  ///< Of an object: type, shape and elements, which are metadata.
  std::vector<std::pair<std::string, OutgoingContent>> attributes{};
  int names = 0;  ///< How many lead to it.
};

/// Dataset `kNoIndex` is a group.
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

  /// Adds a dataset of elements of a tensor of `dtype` and `shape` in `bytes` bytes at `offset`; its number.
  std::uint32_t add_dataset(DType dtype, Dims shape, std::int64_t offset, std::int64_t bytes);
  /// Adds a virtual dataset of the tensor; its number.
  std::uint32_t add_virtual(DType dtype, Dims shape, std::int64_t bytes, std::vector<OutgoingBox> boxes);
  /// Gives it a name. `suffix` stands behind the last link as it is. \returns the path from the root.
  std::string link(const Keys& keys, std::uint32_t dataset, std::string_view suffix = {});

  /// An attribute or dataset as its source stored it. Datasets are added first.
  /// \throws Error kUnsupported  a key too long for an attribute; with the name.
  void add_kept(const KeptContent& kept);
  /// An empty dict becomes an empty group, all else an attribute.
  /// \throws Error kUnsupported  a value that cannot be an attribute, a key too long for one; with the name.
  void add_object(const Keys& keys, const Value& value);
  void add_root_attribute(std::string_view name, OutgoingContent content);
  /// A text of Catalog::metadata.
  void add_text(std::string_view key, std::string_view text);
  /// Notes at the root what a reader needs to know of names. Called last.
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
  bool has_encoded_names_ = false;
};

}  // namespace shard::hdf5
