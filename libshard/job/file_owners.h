/// \file
/// Which rank owns each file: the one that creates it and writes its headers, frames and ends. Pure.
#pragma once

#include <vector>

#include "libshard/catalog/catalog.h"

namespace shard {

/// By file, among `ranks` ranks that share the work. The file of rank r of T in the checkpoint is floor(r * ranks /
/// T)'s; file i of F that hold whole tensors floor(i * ranks / F)'s; metadata and indexes are rank 0's. \pre ranks >=
/// 1; File::rank of no file is its world size or more
std::vector<int> file_owners(const Catalog& catalog, int ranks);

}  // namespace shard
