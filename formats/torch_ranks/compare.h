/// \file
/// Compares the tensors of ranks by their bytes.
#pragma once

#include "formats/torch/saved_files.h"
#include "libshard/catalog/catalog.h"

namespace shard::torch_ranks {

/// True if both have the same dtype, shape and element bytes; strides may differ. Locates their storages. A lost tensor
/// (for repair) equals any other.
/// \throws Error kCorruption  the stored bytes contradict the metadata, or cannot be decoded.
/// Cost: reads both up to the first difference. Memory: two blocks of 256 KiB.
bool is_equal(torch_save::SavedFiles& files, const Catalog& catalog, const StoredTensor& a, const StoredTensor& b);

}  // namespace shard::torch_ranks
