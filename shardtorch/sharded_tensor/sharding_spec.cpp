#include "shardtorch/sharded_tensor/sharding_spec.h"

#include <ATen/ATen.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <algorithm>
#include <optional>

#include "libshard/catalog/layouts/split.h"
#include "libshard/core/box.h"
#include "libshard/core/checked.h"
#include "shardtorch/errors.h"

namespace shard {

namespace {

/// The only dimension with offsets other than 0; nothing if there is none, or more than one.
std::optional<std::size_t> only_cut_dim(const std::vector<ShardMetadata>& shards) {
  std::optional<std::size_t> cut;
  for (const ShardMetadata& shard : shards) {
    for (std::size_t d = 0; d < shard.shard_offsets.size(); ++d) {
      if (shard.shard_offsets[d] == 0) continue;
      if (cut.value_or(d) != d) return std::nullopt;
      cut = d;
    }
  }
  return cut;
}

/// The chunk size if the shards are chunks: equal in all dimensions except `dim`, along which they are consecutive.
std::optional<Sizes> joint_size(const std::vector<ShardMetadata>& shards, std::size_t dim) {
  Sizes size = shards.front().shard_sizes;
  if (dim >= size.size()) return std::nullopt;
  size[dim] = 0;
  for (const ShardMetadata& shard : shards) {
    if (shard.shard_sizes.size() != size.size()) return std::nullopt;
    if (__builtin_add_overflow(size[dim], shard.shard_sizes[dim], &size[dim])) return std::nullopt;
  }
  return size;
}

/// The chunk spec with exactly these boxes, if it exists.
ShardingSpecPtr infer_chunk_spec(std::vector<ShardMetadata> shards) {
  const std::optional<std::size_t> dim = only_cut_dim(shards);
  if (!dim.has_value()) return nullptr;
  const std::optional<Sizes> size = joint_size(shards, *dim);
  if (!size.has_value()) return nullptr;
  std::ranges::stable_sort(shards, {}, [&](const ShardMetadata& shard) { return shard.shard_offsets[*dim]; });
  std::vector<RemoteDevice> placements;
  for (const ShardMetadata& shard : shards) {
    if (!shard.placement.has_value()) return nullptr;
    placements.push_back(*shard.placement);
  }
  ShardingSpecPtr spec = chunk_spec(static_cast<std::int64_t>(*dim), std::move(placements));
  return spec->build_metadata(*size, {}).shards_metadata == shards ? spec : nullptr;
}

}  // namespace

ChunkShardingSpec::ChunkShardingSpec(std::int64_t dim, std::vector<RemoteDevice> placements)
    : dim_(dim), placements_(std::move(placements)) {
  SHARD_CHECK_VALUE(!placements_.empty(), "ChunkShardingSpec needs a placement");
}

ChunkShardingSpec::ChunkShardingSpec(std::string_view, std::vector<RemoteDevice>) : dim_(0) {
  SHARD_CHECK_NOT_IMPLEMENTED(false, "ChunkShardingSpec does not support named dimension yet!");
}

ShardedTensorMetadata ChunkShardingSpec::build_metadata(at::IntArrayRef size,
                                                        const TensorProperties& properties) const {
  const auto dims = static_cast<std::int64_t>(size.size());
  SHARD_CHECK_VALUE(dim_ >= -dims && dim_ < dims, "Invalid sharding dim: ", dim_);
  const auto dim = static_cast<std::size_t>(dim_ < 0 ? dim_ + dims : dim_);
  SHARD_CHECK_VALUE(size[dim] >= 0, "size should be >= 0, found ", to_string(size));
  const std::int64_t split = split_size(size[dim], static_cast<std::int64_t>(placements_.size()));
  ShardedTensorMetadata metadata{.shards_metadata = {}, .size = size.vec(), .tensor_properties = properties};
  metadata.shards_metadata.reserve(placements_.size());
  std::int64_t index = 0;
  for (const RemoteDevice& placement : placements_) {
    Sizes offsets(size.size(), 0), sizes = size.vec();
    offsets[dim] = split * index;
    sizes[dim] = chunked_dim_size(size[dim], split, index++);
    metadata.shards_metadata.emplace_back(std::move(offsets), std::move(sizes), placement);
  }
  return metadata;
}

std::string ChunkShardingSpec::str() const {
  return c10::str("ChunkShardingSpec(dim=", dim_, ", placements=[", c10::Join(", ", placements_), "])");
}

EnumerableShardingSpec::EnumerableShardingSpec(std::vector<ShardMetadata> shards) : shards_(std::move(shards)) {
  SHARD_CHECK_VALUE(!shards_.empty(), "Empty shard list provided: []");
  check_no_overlap(shards_);
}

ShardedTensorMetadata EnumerableShardingSpec::build_metadata(at::IntArrayRef size,
                                                             const TensorProperties& properties) const {
  check_tensor(shards_, size);
  return {.shards_metadata = shards_, .size = size.vec(), .tensor_properties = properties};
}

std::string EnumerableShardingSpec::str() const {
  return c10::str("EnumerableShardingSpec(shards=[", c10::Join(", ", shards_), "])");
}

ShardingSpecPtr chunk_spec(std::int64_t dim, std::vector<RemoteDevice> placements) {
  return std::make_shared<ChunkShardingSpec>(dim, std::move(placements));
}

ShardingSpecPtr chunk_spec(std::int64_t dim, const ProcessGroupPtr& group, at::Device device) {
  const ProcessGroupPtr members = group_or_default(group);
  std::vector<RemoteDevice> placements;
  for (const int rank : members->global_ranks()) placements.emplace_back(rank, device);
  return chunk_spec(dim, std::move(placements));
}

ShardingSpecPtr chunk_spec(std::int64_t dim) {
  const ProcessGroupPtr group = default_group();
  if (!group->preferred_device().is_cuda()) return chunk_spec(dim, group, at::kCPU);
  const int devices = c10::impl::getDeviceGuardImpl(at::kCUDA)->deviceCount();
  std::vector<RemoteDevice> placements;
  for (int rank = 0; rank < group->size(); ++rank) {
    placements.emplace_back(rank, at::Device(at::kCUDA, static_cast<at::DeviceIndex>(rank % devices)));
  }
  return chunk_spec(dim, std::move(placements));
}

ShardingSpecPtr enumerable_spec(std::vector<ShardMetadata> shards) {
  return std::make_shared<EnumerableShardingSpec>(std::move(shards));
}

const ChunkShardingSpec* as_chunk(const ShardingSpec& spec) { return dynamic_cast<const ChunkShardingSpec*>(&spec); }

ShardingSpecPtr infer_spec(const std::vector<ShardMetadata>& shards) {
  ShardingSpecPtr spec = infer_chunk_spec(shards);
  return spec != nullptr ? spec : enumerable_spec(shards);
}

std::int64_t split_size(std::int64_t dim_size, std::int64_t chunks) {
  SHARD_CHECK_VALUE(dim_size >= 0 && chunks > 0, "cannot divide ", dim_size, " elements into ", chunks, " chunks");
  return ceil_div(dim_size, chunks);
}

std::int64_t chunked_dim_size(std::int64_t dim_size, std::int64_t split, std::int64_t index) {
  SHARD_CHECK_VALUE(dim_size >= 0 && split >= 0 && index >= 0, "chunk ", index, " of ", split, " out of ", dim_size,
                    " elements is none");
  return piece_of(dim_size, split, index).size;
}

/// The begin and the size of the rank's chunk. The rank is one of the world.
std::pair<std::int64_t, std::int64_t> chunk_of_rank(std::int64_t dim_size, const ChunkShardingSpec& spec, int rank) {
  const std::vector<RemoteDevice>& placements = spec.placements();
  const auto at = std::ranges::find(placements, std::optional(rank), &RemoteDevice::rank);
  SHARD_CHECK(at != placements.end(), "current_rank not in the placement.");
  const std::int64_t split = split_size(dim_size, static_cast<std::int64_t>(placements.size()));
  const DimRange own = piece_of(dim_size, split, at - placements.begin());
  return {own.begin, own.size};
}

at::Tensor narrow_tensor(const at::Tensor& tensor, const ShardMetadata& shard) {
  return narrow_tensor_by_index(tensor, shard.shard_offsets, shard.shard_sizes);
}

at::Tensor narrow_tensor_by_index(const at::Tensor& tensor, at::IntArrayRef offsets, at::IntArrayRef sizes) {
  const auto dims = static_cast<std::size_t>(tensor.dim());
  SHARD_CHECK_VALUE(offsets.size() == dims && sizes.size() == dims, "cannot narrow a tensor of ", dims,
                    " dimensions to offsets ", to_string(offsets), " and sizes ", to_string(sizes));
  at::Tensor part = tensor;
  for (std::size_t i = 0; i < dims; ++i) {
    const auto dim = static_cast<std::int64_t>(i);
    if (sizes[i] == tensor.size(dim)) continue;
    // An empty shard may be past the end.
    const std::int64_t start = std::min(offsets[i], tensor.size(dim));
    part = part.narrow(dim, start, sizes[i]);
  }
  return part;
}

}  // namespace shard
