/// \file
/// Layouts of whole tensors: which file each one goes to. Inside libshard/catalog only.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "libshard/catalog/layout.h"

namespace shard {

/// `bytes` are of units: tensors, or several that share a storage and therefore stay together.
/// \returns for each unit its file, counted from 0 without gaps; units are in name order.
/// \throws Error kInvalidArgument  less than one shard or byte.
///
/// ShardsLayout: contiguous runs balanced by bytes; as many files as shards when there are as many units.
/// SizeLayout: greedily, as huggingface_hub's split_state_dict_into_shards_factory: a unit that is too large alone has
/// a file of its own and does not close the one being filled.
std::vector<std::uint32_t> assign_files(const Layout& layout, std::span<const std::int64_t> bytes);

}  // namespace shard
