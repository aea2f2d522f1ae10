/// \file
/// Merges the local shards of many ranks into one tensor's metadata. Pure, except `gather_metadata`.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "shardtorch/sharded_tensor/agree.h"
#include "shardtorch/sharded_tensor/process_group.h"
#include "shardtorch/sharded_tensor/shard.h"

namespace shard {

inline constexpr const char* kOnlyStrided = "Only torch.strided layout is currently supported";
inline constexpr const char* kOnlyContiguous = "Only torch.contiguous_format memory_format is currently supported";

/// \throws c10::ValueError  the tensor is on a different device; `where` ends the text.
void check_device(const at::Tensor& tensor, at::Device placement, const std::string& where = "");

/// The metadata of this rank's shards, with the properties of the first one. `rank` is a rank of the world.
/// \throws c10::ValueError  for the first invalid shard, checked in this order: errors of resolve_placement; layout,
///   contiguity, a placement on a different rank, a device, or a property that differs from the first shard's, naming
///   the rank.
ShardedTensorMetadata metadata_of_local_shards(const std::vector<Shard>& shards, at::IntArrayRef global_size, int rank,
                                               const ProcessGroup& group);

/// Places shards whose positions are unknown, one per rank, consecutively along the first dimension. \throws
/// c10::ValueError  a shard has no dimension.
void stack_rows(std::vector<std::optional<ShardedTensorMetadata>>& gathered);

/// Merges metadata. `gathered[i]` is that of group rank i, or nothing if it has no shards. The result has the shards in
/// the order of ranks.
/// \throws c10::ValueError  ranks differ in a property; overlap; gaps; no shards on any rank.
ShardedTensorMetadata merge_metadata(const std::vector<std::optional<ShardedTensorMetadata>>& gathered);

/// The results of `make_own` on each member, by group rank. A collective. If it throws, or if `facts` differ, all ranks
/// throw (agree.h).
std::vector<std::optional<ShardedTensorMetadata>> gather_metadata(
    Group& group, const std::function<std::optional<ShardedTensorMetadata>()>& make_own, const Words& facts = {});

}  // namespace shard
