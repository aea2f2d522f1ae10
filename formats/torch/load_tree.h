/// \file
/// Converts the tree of one torch.save file to tensors, storages and objects of a catalog.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "formats/torch/saved_file.h"
#include "formats/torch/saved_files.h"
#include "formats/torch/tensor_pickle.h"
#include "libshard/catalog/catalog_builder.h"
#include "libshard/catalog/tree.h"
#include "libshard/core/short_text.h"

namespace shard::torch_save {

/// Appends the content of file number `file` of `files`. Calls in the tree that rebuild a tensor become kTensor values
/// in place. A Parameter stays a call around one; that of torch 0.3 becomes a call in today's form. Storages are not
/// located yet.
class TreeLoader {
 public:
  TreeLoader(Catalog& catalog, SavedFiles& files, std::uint32_t file)
      : catalog_(catalog), builder_(catalog), files_(files), file_(file), hidden_(*catalog.arena) {}
  /// \throws Error kCorruption, kUnsupported  with file and tensor.
  void load(Value& root);

 private:
  void visit(const TreeLeaf& leaf);
  void add_tensor(const TreeLeaf& leaf, Value& node, const TensorView& view, bool requires_grad);
  void add_again(const TreeLeaf& leaf, const Value& node);
  void add_object(const TreeLeaf& leaf);
  void warn(const FirstNames& names, std::string_view one, std::string_view many);

  Catalog& catalog_;
  CatalogBuilder builder_;
  SavedFiles& files_;
  std::uint32_t file_;
  HiddenTensors hidden_;
  FirstNames flagged_, attributed_, moved_, holding_;  ///< Names for the warnings, see load.
};

}  // namespace shard::torch_save
