/// \file
/// Whether ranks hold the same: objects by value, tensors by their bytes.
#pragma once

#include "formats/torch/saved_files.h"
#include "libshard/catalog/catalog.h"

namespace shard::torch_ranks {

/// Compares the objects of one checkpoint: its steps are counted over all of them, so that many objects that share one
/// large value end.
class ObjectComparison {
 public:
  /// True when two objects say the same in every node. Nodes may hold themselves. \throws Error kCorruption  too many.
  bool is_equal(const Value& a, const Value& b);

 private:
  std::int64_t visits_ = 0;
};

/// True when both have the same dtype, shape and element bytes, whatever their strides. Locates their storages.
/// \throws Error kCorruption  what lies there contradicts the metadata, or cannot be decoded.
/// Cost: reads both up to the first difference. Memory: two blocks of 256 KiB.
bool is_equal(torch_save::SavedFiles& files, const Catalog& catalog, const StoredTensor& a, const StoredTensor& b);

}  // namespace shard::torch_ranks
