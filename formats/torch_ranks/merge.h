/// \file
/// Merges the leaves of all ranks' files into tensors and objects of one catalog.
#pragma once

#include <vector>

#include "formats/torch/saved_files.h"
#include "formats/torch_ranks/rank_file.h"
#include "libshard/catalog/layouts/layout.h"
#include "libshard/core/findings.h"

namespace shard::torch_ranks {

/// Fills `catalog` (tensors, objects, chunks, shardings, root) from `ranks`, which are sorted by rank.
/// `catalog.world_size` is set before.
///
/// Shards become chunks of one tensor. A plain tensor or object that is equal on all ranks that have it becomes one
/// entry, with the lowest rank's copy; Tensor::rank is set if some ranks lack it. All others become one entry per rank.
/// With `own_tensors`, so do entries that some ranks lack. With `layout`, plain tensors that a rule shards are slices.
/// The root is rank 0's tree, or null if that lacks a name. Calls in it that rebuild a tensor become kTensor values.
///
/// Reports kCorruption if ranks contradict one another, with tensor, file, expected and found. If the sink continues,
/// the tensor is skipped.
void merge(Catalog& catalog, torch_save::SavedFiles& files, const std::vector<RankFile>& ranks,
           const MeshLayout* layout, bool own_tensors, Findings& findings);

}  // namespace shard::torch_ranks
