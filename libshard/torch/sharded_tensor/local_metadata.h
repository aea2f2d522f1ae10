/// \file
/// Many ranks' local shards become one tensor's metadata. Pure but for `gather_metadata`.
#pragma once

#include <functional>
#include <optional>
#include <vector>

#include "libshard/torch/sharded_tensor/process_group.h"
#include "libshard/torch/sharded_tensor/shard.h"

namespace shard {

/// Of this rank's shards; properties of the first. `rank` is of the world.
/// \throws c10::ValueError  layout, contiguity, a placement of another rank, a device, or shards that differ in a
///   property; naming the rank. What resolve_placement throws.
ShardedTensorMetadata metadata_of_local_shards(const std::vector<Shard>& shards, at::IntArrayRef global_size, int rank,
                                               const ProcessGroup& group);

/// `gathered[i]` is group rank i's, or nothing where it has no shards. Shards in the order of ranks.
/// \throws c10::ValueError  ranks differ in a property; overlap; gaps; no shards on all ranks.
ShardedTensorMetadata merge_metadata(const std::vector<std::optional<ShardedTensorMetadata>>& gathered);

/// What `make_own` returns on each member, by group rank. A collective; where it throws, all ranks throw (agree.h).
std::vector<std::optional<ShardedTensorMetadata>> gather_metadata(
    Group& group, const std::function<std::optional<ShardedTensorMetadata>()>& make_own);

}  // namespace shard
