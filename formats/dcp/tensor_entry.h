/// \file
/// What `.metadata` says of a tensor, as one of the catalog's. Inside formats/dcp only.
#pragma once

#include "formats/dcp/metadata.h"
#include "libshard/catalog/catalog.h"

namespace shard::dcp {

/// Appends a tensor of `metadata` with its chunks, each a stored tensor of its own in the storage of its item; the
/// boxes of a run of elements (TensorEntry::stored_size) are chunks of one stored tensor. Until the item is located it
/// is taken for row-major and alone in its storage. \throws Error  sizes overflow; a part of the tensor may have been
/// added then.
void add_tensor(Catalog& catalog, const Metadata& metadata, const TensorEntry& entry);

}  // namespace shard::dcp
