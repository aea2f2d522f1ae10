/// \file
/// Whether ranks hold the same tensor, by its bytes.
#pragma once

#include "formats/torch/saved_files.h"
#include "libshard/catalog/catalog.h"

namespace shard::torch_ranks {

/// True when both have the same dtype, shape and element bytes, whatever their strides. Locates their storages.
/// What is lost (for repair) differs from nothing.
/// \throws Error kCorruption  what lies there contradicts the metadata, or cannot be decoded.
/// Cost: reads both up to the first difference. Memory: two blocks of 256 KiB.
bool is_equal(torch_save::SavedFiles& files, const Catalog& catalog, const StoredTensor& a, const StoredTensor& b);

}  // namespace shard::torch_ranks
