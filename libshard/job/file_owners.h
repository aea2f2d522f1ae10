/// \file Assigns an owner to each file: the rank that creates it and writes its headers, frames and ends. Pure.
#pragma once

#include <vector>

#include "libshard/catalog/catalog.h"

namespace shard {

/// The owner of each file, among `ranks` ranks that share the work. The file of rank r of T in the checkpoint belongs
/// to rank floor(r * ranks / T). File i of F that contain whole tensors belongs to rank floor(i * ranks / F). Metadata
/// and indexes belong to rank 0. \pre ranks >= 1; every File::rank is less than its world size
std::vector<int> file_owners(const Catalog& catalog, int ranks);

}  // namespace shard
