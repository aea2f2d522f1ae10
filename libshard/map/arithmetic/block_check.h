/// \file
/// Whether the cuts of tensors that are quantised in blocks fall on the blocks' edges, and those of their scales on the
/// same ones. Inside libshard/map only.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string_view>

#include "libshard/map/arithmetic/compose.h"
#include "libshard/map/documents/model_map.h"

namespace shard {

/// A logical tensor of a map that is made or undone.
struct BlockedTensor {
  std::string_view name;
  Dims shape;
  std::span<const MapLink> links;
};

/// Checks each tensor whose rule has `block` against the one that it scales. `rank_of` gives a link's rank, or -1.
/// \throws Error kInvalidArgument  a scale of another shape than one element a block, or a cut inside a block
/// \throws Error kNotFound         the scaled tensor is not there
/// Cost: n log n in links of such tensors; nothing where no rule has `block`.
void check_blocks(const ModelMap& map, std::span<const BlockedTensor> tensors,
                  const std::function<std::int64_t(const MapLink&)>& rank_of);

}  // namespace shard
