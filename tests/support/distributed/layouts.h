/// \file
/// Layouts of test tensors.
#pragma once

#include <cstdint>
#include <vector>

#include "shardtorch/sharded_tensor/metadata.h"
#include "shardtorch/sharded_tensor/remote_device.h"

namespace shard::test {

/// "rank:0/cpu", "rank:1/cpu", ...
inline std::vector<RemoteDevice> cpu_placements(const std::vector<int>& ranks = {0, 1, 2, 3}) {
  std::vector<RemoteDevice> places;
  for (const int rank : ranks) places.emplace_back(rank, at::kCPU);
  return places;
}

/// The quarters of a square tensor, each (side, side), row by row. \pre four places
inline std::vector<ShardMetadata> quarters(const std::vector<RemoteDevice>& places, std::int64_t side = 5) {
  return {{{0, 0}, {side, side}, places.at(0)},
          {{0, side}, {side, side}, places.at(1)},
          {{side, 0}, {side, side}, places.at(2)},
          {{side, side}, {side, side}, places.at(3)}};
}

/// Shards of (height, width) below each other, one per place.
inline std::vector<ShardMetadata> stacked(const std::vector<RemoteDevice>& places, std::int64_t height,
                                          std::int64_t width) {
  std::vector<ShardMetadata> shards;
  for (const RemoteDevice& place : places) {
    shards.emplace_back(Sizes{height * std::ssize(shards), 0}, Sizes{height, width}, place);
  }
  return shards;
}

/// Shards of (height, width) side by side, one per place.
inline std::vector<ShardMetadata> side_by_side(const std::vector<RemoteDevice>& places, std::int64_t height,
                                               std::int64_t width) {
  std::vector<ShardMetadata> shards;
  for (const RemoteDevice& place : places) {
    shards.emplace_back(Sizes{0, width * std::ssize(shards)}, Sizes{height, width}, place);
  }
  return shards;
}

}  // namespace shard::test
