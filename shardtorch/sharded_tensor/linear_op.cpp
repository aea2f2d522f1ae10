// torch::nn::functional::linear is not an operator but C++ code that calls weight.t(), then addmm or matmul. If the
// program registered an op "linear" for a sharded weight, t() returns a ShardedTensor that remembers the weight, and
// the product with it calls that op. So an unchanged torch::nn::Linear reaches it.
#include <ATen/ATen.h>

#include <algorithm>
#include <utility>

#include "shardtorch/sharded_tensor/builtin_ops.h"
#include "shardtorch/sharded_tensor/sharded_tensor_impl.h"

namespace shard {

namespace {

using Args = at::ArrayRef<c10::IValue>;
using Result = std::optional<c10::IValue>;

ShardMetadata transposed(ShardMetadata shard) {
  std::ranges::reverse(shard.shard_offsets);
  std::ranges::reverse(shard.shard_sizes);
  return shard;
}

/// A chunk spec remains one; other specs are inferred from the shards.
ShardingSpecPtr transposed(const ShardingSpec& spec, const std::vector<ShardMetadata>& shards) {
  const ChunkShardingSpec* const chunk = as_chunk(spec);
  if (chunk == nullptr) return infer_spec(shards);
  return chunk_spec(1 - (chunk->dim() + 2) % 2, chunk->placements());
}

/// \pre two dimensions
ShardedTensor transposed(const ShardedTensor& tensor) {
  ShardedTensorMetadata metadata = tensor.metadata();
  std::ranges::reverse(metadata.size);
  std::ranges::transform(metadata.shards_metadata, metadata.shards_metadata.begin(),
                         [](const ShardMetadata& shard) { return transposed(shard); });
  ShardingSpecPtr spec = transposed(*tensor.sharding_spec(), metadata.shards_metadata);
  auto impl = c10::make_intrusive<ShardedTensorImpl>(std::move(spec), std::move(metadata));
  impl->group = tensor.process_group();
  for (const Shard& shard : tensor.local_shards()) {
    impl->local_shards.emplace_back(shard.tensor.t(), transposed(shard.metadata));
  }
  impl->transposed_of = tensor.as_tensor();
  return ShardedTensor::of(at::Tensor(std::move(impl)));
}

/// Calls linear(input, weight, bias), where argument `weight_at` is a transposed weight.
Result linear(Args args, std::size_t weight_at, const c10::IValue& input, const c10::IValue& bias) {
  const ShardedTensor product = sharded_arg(args, weight_at);
  if (!product.defined() || !impl_of(product).transposed_of.defined()) return std::nullopt;
  return call_op("linear", {input, impl_of(product).transposed_of, bias});
}

}  // namespace

Result run_t(Args args) {
  const ShardedTensor tensor = sharded_arg(args, 0);
  if (!tensor.defined() || tensor.dim() != 2 || !has_registered_op(*tensor.sharding_spec(), "linear")) return {};
  return transposed(tensor).as_tensor();
}

Result run_matmul(Args args) { return linear(args, 1, args[0], c10::IValue()); }

Result run_addmm(Args args) {
  const bool is_plain = arg_or(args, 3, 1).toScalar().equal(1) && arg_or(args, 4, 1).toScalar().equal(1);
  return is_plain ? linear(args, 2, args[1], args[0]) : std::nullopt;
}

}  // namespace shard
