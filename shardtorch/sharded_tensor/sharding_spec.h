/// \file
/// Specs that define a tensor's shards and their placements. Only `shard` communicates.
///
/// Source: torch/distributed/_shard/sharding_spec/{api,chunk_sharding_spec,_internals}.py (torch 2.11).
#pragma once

#include <concepts>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "shardtorch/sharded_tensor/metadata.h"
#include "shardtorch/sharded_tensor/process_group.h"

namespace shard {

class ShardedTensor;

/// A placement without sharding.
class PlacementSpec {
 public:
  virtual ~PlacementSpec() = default;
};

struct DevicePlacementSpec final : PlacementSpec {
  explicit DevicePlacementSpec(RemoteDevice where) : device(std::move(where)) {}
  RemoteDevice device;
  friend bool operator==(const DevicePlacementSpec& a, const DevicePlacementSpec& b) { return a.device == b.device; }
};

/// Immutable. Tensors share the spec from which they are created, so create specs with chunk_spec and enumerable_spec,
/// which return shared pointers.
class ShardingSpec : public PlacementSpec {
 public:
  /// "ChunkShardingSpec": for messages, and as the key of ops for a class of specs (ops.h).
  virtual std::string_view class_name() const = 0;
  /// All shards of a tensor of that size. \throws c10::ValueError  the spec cannot shard this size.
  virtual ShardedTensorMetadata build_metadata(at::IntArrayRef size, const TensorProperties& properties) const = 0;
  /// Shards `tensor` of group rank `src_rank` and scatters it. A collective of ranks with equal specs, which
  /// shard_tensor (factories.h) ensures. The result keeps this spec, or a copy if no shared_ptr owns it. `group` null:
  /// the default group. \throws c10::NotImplementedError  such specs do not support it.
  virtual ShardedTensor shard(const at::Tensor& tensor, int src_rank = 0, ProcessGroupPtr group = nullptr) const = 0;
  /// The whole spec as text. Two texts are equal exactly if the specs are: "ChunkShardingSpec(dim=0,
  /// placements=[rank:0/cpu])".
  virtual std::string str() const = 0;
};

using ShardingSpecPtr = std::shared_ptr<const ShardingSpec>;

inline bool operator==(const ShardingSpec& a, const ShardingSpec& b) { return a.str() == b.str(); }

/// Divides one dimension into chunks of ceil(size / placements), one per placement. The last ones may be shorter or
/// empty. Chunk i begins at i times that length, even past the end. A rank may appear several times.
class ChunkShardingSpec final : public ShardingSpec, public std::enable_shared_from_this<ChunkShardingSpec> {
 public:
  /// `dim` may be negative (from the end). It is checked once a size is known.
  /// \throws c10::ValueError  no placements.
  ChunkShardingSpec(std::int64_t dim, std::vector<RemoteDevice> placements);
  ChunkShardingSpec(std::floating_point auto dim, std::vector<RemoteDevice> placements) = delete;
  /// \throws c10::NotImplementedError  always: named dimensions are not supported yet.
  ChunkShardingSpec(std::string_view named_dim, std::vector<RemoteDevice> placements);

  std::int64_t dim() const { return dim_; }
  const std::vector<RemoteDevice>& placements() const { return placements_; }

  static constexpr std::string_view kClassName = "ChunkShardingSpec";
  std::string_view class_name() const override { return kClassName; }
  ShardedTensorMetadata build_metadata(at::IntArrayRef size, const TensorProperties& properties) const override;
  ShardedTensor shard(const at::Tensor& tensor, int src_rank = 0, ProcessGroupPtr group = nullptr) const override;
  std::string str() const override;

 private:
  std::int64_t dim_;
  std::vector<RemoteDevice> placements_;
};

/// Any boxes that do not overlap.
class EnumerableShardingSpec final : public ShardingSpec {
 public:
  /// \throws c10::ValueError  no shards, different numbers of dimensions, overlap.
  explicit EnumerableShardingSpec(std::vector<ShardMetadata> shards);

  const std::vector<ShardMetadata>& shards() const { return shards_; }

  static constexpr std::string_view kClassName = "EnumerableShardingSpec";
  std::string_view class_name() const override { return kClassName; }
  ShardedTensorMetadata build_metadata(at::IntArrayRef size, const TensorProperties& properties) const override;
  ShardedTensor shard(const at::Tensor& tensor, int src_rank = 0, ProcessGroupPtr group = nullptr) const override;
  std::string str() const override;

 private:
  std::vector<ShardMetadata> shards_;
};

ShardingSpecPtr chunk_spec(std::int64_t dim, std::vector<RemoteDevice> placements);
ShardingSpecPtr chunk_spec(std::floating_point auto dim, std::vector<RemoteDevice> placements) = delete;
/// One chunk for each member of `group` (null: the default group), in the order of group ranks, on `device`.
ShardingSpecPtr chunk_spec(std::int64_t dim, const ProcessGroupPtr& group, at::Device device);
/// One chunk for each rank of the default group: on the CPU, or in a world of NCCL on the CUDA device that
/// init_process_group chooses, if all hosts have as many GPUs as this one.
ShardingSpecPtr chunk_spec(std::int64_t dim);
ShardingSpecPtr enumerable_spec(std::vector<ShardMetadata> shards);
/// `spec` as a chunk spec, or null.
const ChunkShardingSpec* as_chunk(const ShardingSpec& spec);

/// A chunk spec if its boxes are exactly these, with placements ordered by offset; otherwise an enumerable spec.
/// \throws c10::ValueError  errors of EnumerableShardingSpec.
ShardingSpecPtr infer_spec(const std::vector<ShardMetadata>& shards);

/// The number of elements of a chunk along a dimension of `dim_size`: ceil(dim_size / chunks).
/// \throws c10::ValueError  no chunks, a negative size.
std::int64_t split_size(std::int64_t dim_size, std::int64_t chunks);
/// The number of elements of chunk `index`; 0 past the end. \throws c10::ValueError  a negative number.
std::int64_t chunked_dim_size(std::int64_t dim_size, std::int64_t split, std::int64_t index);
/// The first element and the number of elements of the chunk of `rank` (in the world). If it has several, their numbers
/// are added in the order of the placements.
/// \throws c10::Error  "current_rank not in the placement."
std::pair<std::int64_t, std::int64_t> chunk_of_rank(std::int64_t dim_size, const ChunkShardingSpec& spec, int rank);

/// The part of `tensor` in `shard`, as a view. Dimensions of full size do not change. An empty part may be past the
/// end. \throws c10::ValueError  different numbers of dimensions; torch's errors.
at::Tensor narrow_tensor(const at::Tensor& tensor, const ShardMetadata& shard);
at::Tensor narrow_tensor_by_index(const at::Tensor& tensor, at::IntArrayRef offsets, at::IntArrayRef sizes);

}  // namespace shard
