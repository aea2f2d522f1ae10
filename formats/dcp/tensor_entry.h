/// \file
/// Converts a tensor of `.metadata` to one of the catalog. Inside formats/dcp only.
#pragma once

#include "formats/dcp/metadata.h"
#include "libshard/catalog/catalog.h"

namespace shard::dcp {

/// Appends a tensor of `metadata` with its chunks. Each chunk is a stored tensor of its own in the storage of its item.
/// The boxes of a run of elements (TensorEntry::stored_size) are chunks of one stored tensor. Until the item is
/// located, the stored tensor is assumed to be row-major and to fill its storage. \throws Error  sizes overflow; the
/// catalog may then contain a part of the tensor.
void add_tensor(Catalog& catalog, const Metadata& metadata, const TensorEntry& entry);

}  // namespace shard::dcp
