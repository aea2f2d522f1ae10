/// \file
/// Merged weights as formulas over a base model and adapters. Inside libshard/compute only.
#pragma once

#include <vector>

#include "libshard/compute/formula.h"
#include "libshard/compute/merge_adapters.h"
#include "libshard/compute/unrounded_reader.h"

namespace shard {

/// The changed weights of `base`, which are dropped. Reader 0 has the catalog `base`. The adapters follow, after
/// `unrounded` as reader 1 if it is not null. \param only_unrounded  reader 0 is not read, because its catalog differs
/// \param counts  as for merge_adapters  \throws Error  as merge_adapters
Computation merged_weights(const Catalog& base, const std::vector<Adapter>& adapters, const UnroundedReader* unrounded,
                           bool only_unrounded, std::vector<MergedAdapter>& counts);

}  // namespace shard
