// Operators that create a tensor like a ShardedTensor, and those that fill a tensor in place, as torch::nn::init does.
//
// Source: torch/distributed/_shard/sharded_tensor/_ops/init.py (torch 2.11).
#include <ATen/ATen.h>

#include <utility>

#include "shardtorch/errors.h"
#include "shardtorch/sharded_tensor/builtin_ops.h"
#include "shardtorch/sharded_tensor/factories.h"
#include "shardtorch/sharded_tensor/sharded_tensor_impl.h"

namespace shard {

namespace {

using Args = at::ArrayRef<c10::IValue>;
using Result = std::optional<c10::IValue>;

bool is_given(Args args, std::size_t index) { return index < args.size() && !args[index].isNone(); }

/// The arguments dtype, layout, device, pin_memory and memory_format at the end of each schema, from `first` on.
CreateOptions options_like(const ShardedTensor& tensor, Args args, std::size_t first) {
  CreateOptions options;
  options.process_group = tensor.process_group();
  if (is_given(args, first)) options.dtype = args[first].toScalarType();
  if (is_given(args, first + 1)) options.layout = args[first + 1].toLayout();
  SHARD_CHECK_TYPE(!is_given(args, first + 2) || args[first + 2].toDevice() == tensor.as_tensor().device(),
                   "a tensor like a ShardedTensor is on the devices of its shards, so it takes no device");
  if (is_given(args, first + 3)) options.pin_memory = args[first + 3].toBool();
  if (is_given(args, first + 4)) options.memory_format = args[first + 4].toMemoryFormat();
  if (options.memory_format == at::MemoryFormat::Preserve) options.memory_format = at::MemoryFormat::Contiguous;
  return options;
}

/// The new tensor, or nothing if the first argument is not sharded.
Result made_like(Args args, std::size_t first_option, const FillShard& fill) {
  const ShardedTensor tensor = sharded_arg(args, 0);
  if (!tensor.defined()) return std::nullopt;
  const CreateOptions options = options_like(tensor, args, first_option);
  return make_filled(tensor.sharding_spec(), tensor.sizes(), options, fill).as_tensor();
}

Result filled(Args args, const FillShard& fill) {
  const ShardedTensor tensor = sharded_arg(args, 0);
  if (!tensor.defined()) return std::nullopt;
  fill_shards(tensor.local_shards(), fill);
  return tensor.as_tensor();
}

std::optional<at::Generator> generator(Args args, std::size_t index) {
  return is_given(args, index) ? std::optional(args[index].toGenerator()) : std::nullopt;
}

/// rand_like and randn_like have a second schema with a generator after the tensor.
Result drawn_like(Args args, const std::function<void(at::Tensor, std::optional<at::Generator>)>& draw) {
  constexpr std::size_t kWithGenerator = 7;
  const bool has_generator = args.size() == kWithGenerator;
  const auto source = has_generator ? generator(args, 1) : std::nullopt;
  return made_like(args, has_generator ? 2 : 1, [&](at::Tensor shard) { draw(std::move(shard), source); });
}

}  // namespace

Result run_empty_like(Args args) {
  return made_like(args, 1, [](const at::Tensor&) {});
}
Result run_full_like(Args args) {
  return made_like(args, 2, [&](at::Tensor shard) { shard.fill_(args[1].toScalar()); });
}
Result run_ones_like(Args args) {
  return made_like(args, 1, [](at::Tensor shard) { shard.fill_(1); });
}
Result run_zeros_like(Args args) {
  return made_like(args, 1, [](at::Tensor shard) { shard.zero_(); });
}
Result run_rand_like(Args args) {
  return drawn_like(args, [](at::Tensor shard, auto source) { shard.uniform_(0, 1, std::move(source)); });
}
Result run_randn_like(Args args) {
  return drawn_like(args, [](at::Tensor shard, auto source) { shard.normal_(0, 1, std::move(source)); });
}

Result run_fill(Args args) {
  return filled(args, [&](at::Tensor shard) {
    args[1].isTensor() ? shard.fill_(args[1].toTensor()) : shard.fill_(args[1].toScalar());
  });
}
Result run_zero(Args args) {
  return filled(args, [](at::Tensor shard) { shard.zero_(); });
}
Result run_uniform(Args args) {
  return filled(args, [&](at::Tensor shard) {
    shard.uniform_(arg_or(args, 1, 0.0).toDouble(), arg_or(args, 2, 1.0).toDouble(), generator(args, 3));
  });
}
Result run_normal(Args args) {
  return filled(args, [&](at::Tensor shard) {
    shard.normal_(arg_or(args, 1, 0.0).toDouble(), arg_or(args, 2, 1.0).toDouble(), generator(args, 3));
  });
}

}  // namespace shard
