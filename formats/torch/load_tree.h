/// \file
/// From the tree of one torch.save file to the tensors, storages and objects of a catalog.
#pragma once

#include <cstdint>
#include <unordered_map>
#include <vector>

#include "formats/torch/saved_file.h"
#include "formats/torch/tensor_pickle.h"
#include "libshard/catalog/catalog.h"
#include "libshard/catalog/tree.h"

namespace shard::torch_save {

/// Appends what `saved` holds, as file number `file` of the catalog. In the tree, calls that rebuild a tensor become
/// kTensor values in place; a Parameter stays a call around one. Storages are not located yet.
class TreeLoader {
 public:
  /// \pre catalog.files[file] is there. `records` receives one entry for each storage added.
  TreeLoader(Catalog& catalog, std::vector<const zip::Record*>& records, const SavedFile& saved, std::uint32_t file);
  /// \throws Error kCorruption, kUnsupported  naming file and tensor.
  void load();

 private:
  void visit(const TreeLeaf& leaf);
  void add_tensor(const TreeLeaf& leaf, Value& node, const TensorView& view, bool requires_grad);
  void add_again(const TreeLeaf& leaf, const Value& node);
  void add_object(const TreeLeaf& leaf);
  std::uint32_t storage_of(const TensorView& view);
  std::uint16_t location_of(std::string_view location);

  Catalog& catalog_;
  std::vector<const zip::Record*>& records_;
  const SavedFile& saved_;
  std::uint32_t file_;
  std::vector<std::uint32_t> plain_, other_;  ///< By record: the storage that its plain views have, and its others.
  std::unordered_map<std::string_view, std::uint16_t> locations_;
};

}  // namespace shard::torch_save
