/// \file Checks that tensors quantized in blocks are split at the blocks' edges, and that their scales are split at the
///   same ones. Inside libshard/map only.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string_view>

#include "libshard/map/arithmetic/compose.h"
#include "libshard/map/documents/model_map.h"

namespace shard {

/// A logical tensor of a map that is applied or undone.
struct BlockedTensor {
  std::string_view name;
  Dims shape;
  std::span<const MapLink> links;
};

/// Checks each tensor whose rule has `block` against the tensor that it scales. `rank_of` returns a link's rank, or -1.
/// \throws Error kInvalidArgument  a scale does not have one element per block, or a box begins or ends inside a block
/// \throws Error kNotFound         the scaled tensor is missing
/// Cost: n log n in links of such tensors; nothing if no rule has `block`.
void check_blocks(const ModelMap& map, std::span<const BlockedTensor> tensors,
                  const std::function<std::int64_t(const MapLink&)>& rank_of);

}  // namespace shard
