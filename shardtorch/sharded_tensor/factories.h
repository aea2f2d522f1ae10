/// \file
/// ShardedTensors with content, and whole tensors that become sharded. SPMD: all ranks call them with equal arguments.
///
/// Source: torch/distributed/_shard/sharded_tensor/__init__.py, torch/distributed/_shard/api.py (torch 2.11).
#pragma once

#include "shardtorch/sharded_tensor/sharded_tensor.h"

namespace shard::sharded_tensor {

/// Creates a tensor without communication, except with options.init_rrefs (see CreateOptions). Errors: ShardedTensor's
/// constructor.
ShardedTensor empty(ShardingSpecPtr spec, at::IntArrayRef size, const CreateOptions& options = {});
ShardedTensor ones(ShardingSpecPtr spec, at::IntArrayRef size, const CreateOptions& options = {});
ShardedTensor zeros(ShardingSpecPtr spec, at::IntArrayRef size, const CreateOptions& options = {});
ShardedTensor full(ShardingSpecPtr spec, at::IntArrayRef size, const at::Scalar& value,
                   const CreateOptions& options = {});
/// Draws each local shard separately, with its shape and from its device's generator, in the metadata's order.
ShardedTensor rand(ShardingSpecPtr spec, at::IntArrayRef size, const CreateOptions& options = {});
ShardedTensor randn(ShardingSpecPtr spec, at::IntArrayRef size, const CreateOptions& options = {});

/// Uses the spec and the size of `tensor`. Everything else, including dtype and group, comes from `options`.
ShardedTensor empty_like(const ShardedTensor& tensor, const CreateOptions& options = {});
ShardedTensor ones_like(const ShardedTensor& tensor, const CreateOptions& options = {});
ShardedTensor zeros_like(const ShardedTensor& tensor, const CreateOptions& options = {});
ShardedTensor full_like(const ShardedTensor& tensor, const at::Scalar& value, const CreateOptions& options = {});
ShardedTensor rand_like(const ShardedTensor& tensor, const CreateOptions& options = {});
ShardedTensor randn_like(const ShardedTensor& tensor, const CreateOptions& options = {});

/// See ShardedTensor::init_from_local_shards.
ShardedTensor init_from_local_shards(std::vector<Shard> local_shards, at::OptionalIntArrayRef global_size,
                                     ProcessGroupPtr group = nullptr, bool init_rrefs = false);

}  // namespace shard::sharded_tensor

namespace shard {

/// Shards group rank `src_rank`'s `tensor` by `spec`. The others' tensors give only the size and properties, which must
/// be equal. A rank may get any number of shards: new leaves with the tensor's dtype and requires_grad. Collective: all
/// ranks compare spec, src_rank, size, dtype and requires_grad, then the shards are scattered (one exchange, without
/// padding). An error on one rank is thrown on all.
/// \throws c10::ValueError  "input tensor is not a contiguous Tensor", "... does not match with src_rank=...", "...
///   does not match with sharding_spec=..." ..., an invalid src_rank; c10::NotImplementedError  an enumerable spec.
ShardedTensor shard_tensor(const at::Tensor& tensor, ShardingSpecPtr spec, int src_rank = 0,
                           ProcessGroupPtr group = nullptr);

namespace init {

/// Fills each local shard in place, in order; returns the tensor. Sources of the distributions: torch::nn::init.
ShardedTensor uniform_(ShardedTensor tensor, double a = 0, double b = 1);
ShardedTensor normal_(ShardedTensor tensor, double mean = 0, double std = 1);
ShardedTensor constant_(ShardedTensor tensor, const at::Scalar& value);
/// `mode` is "fan_in" or "fan_out". Fans are those of the local shard, as in torch. Shards without elements do not
/// change. \throws c10::ValueError  any other mode or nonlinearity (torch's names: "relu", "conv2d", ...).
ShardedTensor kaiming_uniform_(ShardedTensor tensor, double a = 0, const std::string& mode = "fan_in",
                               const std::string& nonlinearity = "leaky_relu");

}  // namespace init

}  // namespace shard
