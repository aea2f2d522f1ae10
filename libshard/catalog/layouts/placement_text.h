/// \file The text of a ShardedTensor's placement: the rank that has a shard, and its device. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace shard {

/// 1 for "rank:1/cuda:0" and "rank:1"; nothing for a placement without a rank ("worker1/cpu", or "cuda:0", which is the
/// process itself).
std::optional<std::int64_t> rank_of_placement(std::string_view placement);

}  // namespace shard
