/// \file
/// Tensors inside objects, as tensors of the catalog. Inside formats/dcp only.
#pragma once

#include <span>

#include "formats/dcp/item_store.h"
#include "formats/dcp/metadata.h"
#include "formats/dcp/objects.h"
#include "formats/dcp/rank_copies.h"
#include "libshard/catalog/catalog.h"

namespace shard::dcp {

/// Appends the tensors that were found in loaded objects, and their storages. Those of one name that several ranks have
/// become one tensor, or one for each rank where they differ. kTensor values in the objects get the tensors' numbers.
/// \param loaded  of each of `objects`, which are by name and rank
/// \throws Error kCorruption  see CatalogBuilder::add_tensor. Cost: n log n in tensors.
void add_inner_tensors(std::span<const ObjectEntry> objects, std::span<LoadedObject> loaded, ItemStore& items,
                       RankCopies& rank_copies, Catalog& catalog);

}  // namespace shard::dcp
