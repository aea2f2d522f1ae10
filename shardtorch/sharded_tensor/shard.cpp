#include "shardtorch/sharded_tensor/shard.h"

#include <utility>

#include "libshard/core/box.h"
#include "shardtorch/errors.h"
#include "shardtorch/sharded_tensor/local_metadata.h"

namespace shard {

Shard::Shard(at::Tensor own_tensor, ShardMetadata own_metadata)
    : tensor(std::move(own_tensor)), metadata(std::move(own_metadata)) {
  SHARD_CHECK_VALUE(tensor.sizes() == at::IntArrayRef(metadata.shard_sizes),
                    "Shard tensor size does not match with metadata.shard_lengths! Found shard tensor size: ",
                    to_string(tensor.sizes()), ", metadata.shard_lengths: ", to_string(metadata.shard_sizes), ", ");
  if (metadata.placement.has_value()) check_device(tensor, metadata.placement->device());
}

Shard Shard::from_tensor_and_offsets(at::Tensor tensor, Sizes offsets, int rank) {
  ShardMetadata metadata(std::move(offsets), tensor.sizes().vec(), RemoteDevice(rank, tensor.device()));
  return {std::move(tensor), std::move(metadata)};
}

}  // namespace shard
