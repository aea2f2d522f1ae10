#include "shardtorch/sharded_tensor/local_metadata.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "libshard/core/box.h"
#include "libshard/ranks/wire.h"
#include "shardtorch/errors.h"
#include "shardtorch/sharded_tensor/sharded_tensor.h"

namespace shard {

namespace {

void check_layout(const at::Tensor& tensor, int rank) {
  SHARD_CHECK_VALUE(tensor.layout() == at::kStrided, kOnlyStrided, ", but found ", tensor.layout(), " on rank:", rank,
                    "!");
  SHARD_CHECK_VALUE(tensor.is_contiguous(), kOnlyContiguous, "! Found another on rank:", rank);
}

void check_owner(int owner, int rank) {
  SHARD_CHECK_VALUE(owner == rank,
                    "Local shard metadata's rank does not match with the rank in its process group! Found current rank "
                    "in the process group: ",
                    rank, ", local ShardMetadata placement's rank: ", owner);
}

template <class Value>
void check_same_here(const char* property, const Value& one, const Value& other, int rank) {
  SHARD_CHECK_VALUE(one == other, "Local shards' tensor ", property, " property need to be the same on rank:", rank,
                    "! Found one local shard tensor ", property, "=", one, ", the other local shard tensor ", property,
                    "=", other, ".");
}

void check_properties(const Shard& shard, const TensorProperties& first, int rank) {
  const TensorProperties own = TensorProperties::of(shard.tensor);
  check_same_here("size", to_string(shard.metadata.shard_sizes), to_string(shard.tensor.sizes()), rank);
  check_same_here("pin_memory", own.pin_memory, first.pin_memory, rank);
  check_same_here("dtype", own.dtype, first.dtype, rank);
  check_same_here("requires_grad", own.requires_grad, first.requires_grad, rank);
}

/// Checks that the metadata of two members describes one tensor.
struct Members {
  const ShardedTensorMetadata &first, &other;
  std::size_t first_rank, other_rank;

  template <class Value>
  void check_same(const char* property, const Value& one, const Value& another) const {
    SHARD_CHECK_VALUE(one == another, "ShardedTensor ", property,
                      " property does not match from different ranks! Found ", property, "=", one,
                      " on rank:", first_rank, ", and ", property, "=", another, " on rank:", other_rank, ".");
  }
  void check() const {
    const TensorProperties &a = first.tensor_properties, &b = other.tensor_properties;
    check_same("global_size", to_string(first.size), to_string(other.size));
    check_same("dtype", a.dtype, b.dtype);
    check_same("requires_grad", a.requires_grad, b.requires_grad);
    check_same("pin_memory", a.pin_memory, b.pin_memory);
  }
};

}  // namespace

void check_device(const at::Tensor& tensor, at::Device placement, const std::string& where) {
  SHARD_CHECK_VALUE(tensor.device() == placement,
                    "Local shard tensor device does not match with local Shard's placement! Found local shard tensor "
                    "device: ",
                    tensor.device(), ", local shard metadata placement device: ", placement, where);
}

/// Checks this rank's shards against their metadata and against each other, in the order of torch.
ShardedTensorMetadata metadata_of_local_shards(const std::vector<Shard>& shards, at::IntArrayRef global_size, int rank,
                                               const ProcessGroup& group) {
  SHARD_CHECK(!shards.empty(), "must have local shards!");
  ShardedTensorMetadata metadata;
  metadata.size = global_size.vec();
  metadata.tensor_properties = TensorProperties::of(shards.front().tensor);
  for (const Shard& shard : shards) {
    const auto [owner, device] = resolve_placement(group, shard.metadata.placement);
    check_layout(shard.tensor, rank);
    check_owner(owner, rank);
    check_device(shard.tensor, device, c10::str(" on rank:", rank));
    check_properties(shard, metadata.tensor_properties, rank);
    metadata.shards_metadata.push_back(shard.metadata);
  }
  return metadata;
}

/// Computes the offsets of shards that are rows of one tensor, in the order of ranks.
void stack_rows(std::vector<std::optional<ShardedTensorMetadata>>& gathered) {
  std::int64_t rows = 0;
  for (auto& member : gathered) {
    ShardMetadata& shard = member->shards_metadata.front();
    SHARD_CHECK_VALUE(!shard.shard_sizes.empty(), "a shard of no dimension cannot be recalculated");
    shard.shard_offsets.assign(shard.shard_sizes.size(), 0);
    shard.shard_offsets[0] = rows;
    rows += shard.shard_sizes[0];
  }
  const Sizes& first = gathered.front()->shards_metadata.front().shard_sizes;
  for (auto& member : gathered) {
    member->size = first;
    member->size[0] = rows;
  }
}

/// Joins the shards of all ranks. Ranks without shards have no metadata.
ShardedTensorMetadata merge_metadata(const std::vector<std::optional<ShardedTensorMetadata>>& gathered) {
  const auto has_shards = [](const auto& member) { return member.has_value(); };
  const auto first = std::ranges::find_if(gathered, has_shards);
  SHARD_CHECK_VALUE(first != gathered.end(), "ShardedTensor have no local shards on all ranks!");
  ShardedTensorMetadata merged = **first;
  for (auto member = first + 1; member != gathered.end(); ++member) {
    if (!member->has_value()) continue;
    Members{**first, **member, static_cast<std::size_t>(first - gathered.begin()),
            static_cast<std::size_t>(member - gathered.begin())}
        .check();
    const std::vector<ShardMetadata>& shards = (*member)->shards_metadata;
    merged.shards_metadata.insert(merged.shards_metadata.end(), shards.begin(), shards.end());
  }
  check_no_overlap(merged.shards_metadata);
  check_tensor(merged.shards_metadata, merged.size);
  return merged;
}

std::vector<std::optional<ShardedTensorMetadata>> gather_metadata(
    Group& group, const std::function<std::optional<ShardedTensorMetadata>()>& make_own, const Words& facts) {
  const auto make = [&] {
    const std::optional<ShardedTensorMetadata> own = make_own();
    return own.has_value() ? to_bytes(serialize(*own)) : Bytes();
  };
  const std::vector<Bytes> pieces = all_gather_or_throw(group, make, facts);
  std::vector<std::optional<ShardedTensorMetadata>> gathered;
  for (const Bytes& piece : pieces) {
    gathered.push_back(piece.empty() ? std::nullopt : std::optional(deserialize_metadata(std::string(as_text(piece)))));
  }
  return gathered;
}

}  // namespace shard
