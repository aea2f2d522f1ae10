/// \file
/// Merges a tensor whose ranks record the position of their pieces in it. Inside formats/torch_ranks only.
#pragma once

#include <cstdint>

#include "formats/torch_ranks/merge_parts.h"

namespace shard::torch_ranks {

/// \returns the tensor's index. \throws Error kCorruption  ranks contradict one another
std::uint32_t merge_placed_tensor(MergeContext& context, Holders holders);

}  // namespace shard::torch_ranks
