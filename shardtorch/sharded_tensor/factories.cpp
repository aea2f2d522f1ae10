#include "shardtorch/sharded_tensor/factories.h"

#include <ATen/ATen.h>
#include <torch/nn/init.h>

#include <utility>

#include "shardtorch/errors.h"
#include "shardtorch/sharded_tensor/sharded_tensor_impl.h"

namespace shard {

namespace {

ShardedTensor filled(ShardedTensor tensor, const FillShard& fill) {
  fill_shards(tensor.local_shards(), fill);
  return tensor;
}

torch::nn::init::FanModeType fan_mode(const std::string& mode) {
  SHARD_CHECK_VALUE(mode == "fan_in" || mode == "fan_out", "Mode ", mode,
                    " not supported, please use one of fan_in, fan_out");
  if (mode == "fan_in") return torch::kFanIn;
  return torch::kFanOut;
}

torch::nn::init::NonlinearityType nonlinearity_of(const std::string& name) {
  const std::pair<const char*, torch::nn::init::NonlinearityType> known[] = {
      {"linear", torch::kLinear},
      {"conv1d", torch::kConv1D},
      {"conv2d", torch::kConv2D},
      {"conv3d", torch::kConv3D},
      {"conv_transpose1d", torch::kConvTranspose1D},
      {"conv_transpose2d", torch::kConvTranspose2D},
      {"conv_transpose3d", torch::kConvTranspose3D},
      {"sigmoid", torch::kSigmoid},
      {"tanh", torch::kTanh},
      {"relu", torch::kReLU},
      {"leaky_relu", torch::kLeakyReLU}};
  for (const auto& [known_name, nonlinearity] : known) {
    if (name == known_name) return nonlinearity;
  }
  SHARD_CHECK_VALUE(false, "Unsupported nonlinearity ", name);
}

}  // namespace

namespace sharded_tensor {

ShardedTensor empty(ShardingSpecPtr spec, at::IntArrayRef size, const CreateOptions& options) {
  return ShardedTensor(std::move(spec), size, options);
}
ShardedTensor full(ShardingSpecPtr spec, at::IntArrayRef size, const at::Scalar& value, const CreateOptions& options) {
  return make_filled(std::move(spec), size, options, [&](at::Tensor shard) { shard.fill_(value); });
}
ShardedTensor ones(ShardingSpecPtr spec, at::IntArrayRef size, const CreateOptions& options) {
  return full(std::move(spec), size, 1, options);
}
ShardedTensor zeros(ShardingSpecPtr spec, at::IntArrayRef size, const CreateOptions& options) {
  return full(std::move(spec), size, 0, options);
}
ShardedTensor rand(ShardingSpecPtr spec, at::IntArrayRef size, const CreateOptions& options) {
  return make_filled(std::move(spec), size, options, [](at::Tensor shard) { shard.uniform_(); });
}
ShardedTensor randn(ShardingSpecPtr spec, at::IntArrayRef size, const CreateOptions& options) {
  return make_filled(std::move(spec), size, options, [](at::Tensor shard) { shard.normal_(); });
}

ShardedTensor empty_like(const ShardedTensor& tensor, const CreateOptions& options) {
  return empty(tensor.sharding_spec(), tensor.sizes(), options);
}
ShardedTensor ones_like(const ShardedTensor& tensor, const CreateOptions& options) {
  return ones(tensor.sharding_spec(), tensor.sizes(), options);
}
ShardedTensor zeros_like(const ShardedTensor& tensor, const CreateOptions& options) {
  return zeros(tensor.sharding_spec(), tensor.sizes(), options);
}
ShardedTensor full_like(const ShardedTensor& tensor, const at::Scalar& value, const CreateOptions& options) {
  return full(tensor.sharding_spec(), tensor.sizes(), value, options);
}
ShardedTensor rand_like(const ShardedTensor& tensor, const CreateOptions& options) {
  return rand(tensor.sharding_spec(), tensor.sizes(), options);
}
ShardedTensor randn_like(const ShardedTensor& tensor, const CreateOptions& options) {
  return randn(tensor.sharding_spec(), tensor.sizes(), options);
}

ShardedTensor init_from_local_shards(std::vector<Shard> local_shards, at::OptionalIntArrayRef global_size,
                                     ProcessGroupPtr group, bool init_rrefs) {
  return ShardedTensor::init_from_local_shards(std::move(local_shards), global_size, std::move(group), init_rrefs);
}

}  // namespace sharded_tensor

namespace init {

ShardedTensor uniform_(ShardedTensor tensor, double a, double b) {
  return filled(std::move(tensor), [&](at::Tensor shard) { shard.uniform_(a, b); });
}
ShardedTensor normal_(ShardedTensor tensor, double mean, double std) {
  return filled(std::move(tensor), [&](at::Tensor shard) { shard.normal_(mean, std); });
}
ShardedTensor constant_(ShardedTensor tensor, const at::Scalar& value) {
  return filled(std::move(tensor), [&](at::Tensor shard) { shard.fill_(value); });
}
ShardedTensor kaiming_uniform_(ShardedTensor tensor, double a, const std::string& mode,
                               const std::string& nonlinearity) {
  const auto fan = fan_mode(mode);
  const auto function = nonlinearity_of(nonlinearity);
  return filled(std::move(tensor), [&](at::Tensor shard) {
    if (shard.numel() > 0) torch::nn::init::kaiming_uniform_(std::move(shard), a, fan, function);
  });
}

}  // namespace init

}  // namespace shard
