/// \file
/// From the leaves of all ranks' files to the tensors and objects of one catalog.
#pragma once

#include <vector>

#include "formats/torch/saved_files.h"
#include "formats/torch_ranks/rank_file.h"
#include "libshard/catalog/layout.h"
#include "libshard/core/findings.h"

namespace shard::torch_ranks {

/// Fills `catalog` (tensors, objects, chunks, shardings, root) from `ranks`, which are sorted by rank;
/// `catalog.world_size` is set.
///
/// Shards become chunks of one tensor. A plain tensor or object that is equal on all ranks that hold it becomes one
/// entry, of the lowest rank's copy; Tensor::rank is set where not all ranks hold it. Others become an entry for each
/// rank, and so do, with `own_tensors`, those that not all ranks hold. With `layout` plain tensors that a rule cuts are
/// slices.
/// The root is rank 0's tree, or null where that lacks a name. In it calls that rebuild a tensor become kTensor values.
///
/// Reports kCorruption  ranks contradict one another, naming tensor, file, expected and found. Where the sink goes on,
/// the tensor is left out.
void merge(Catalog& catalog, torch_save::SavedFiles& files, const std::vector<RankFile>& ranks,
           const MeshLayout* layout, bool own_tensors, Findings& findings);

}  // namespace shard::torch_ranks
