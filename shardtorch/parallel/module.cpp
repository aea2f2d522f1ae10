#include "shardtorch/parallel/module.h"

#include <ATen/ATen.h>

#include <utility>
#include <vector>

#include "shardtorch/dtensor/dtensor.h"
#include "shardtorch/errors.h"
#include "shardtorch/parallel/parameters.h"
#include "shardtorch/sharded_tensor/agree.h"
#include "shardtorch/sharded_tensor/ops.h"

namespace shard::parallel {

namespace {

constexpr const char* kNoArchive =
    "torch::save and torch::load have no sharded parameters: use shard::checkpoint::save and load, or save_state_file "
    "and load_state_file";

/// Converts tensors as `to` was asked to.
struct Change {
  std::optional<at::Device> device;
  std::optional<at::ScalarType> dtype;

  std::optional<at::ScalarType> dtype_of(at::ScalarType old) const {
    return at::isFloatingType(old) || at::isComplexType(old) ? dtype : std::nullopt;
  }
  at::Tensor operator()(const at::Tensor& tensor) const {
    const ShardedTensor sharded = ShardedTensor::of(tensor);
    if (sharded.defined()) return sharded.to({.device = device, .dtype = dtype_of(sharded.dtype())}).as_tensor();
    at::TensorOptions options = tensor.options();
    if (device.has_value()) options = options.device(*device);
    return tensor.to(options.dtype(dtype_of(tensor.scalar_type()).value_or(tensor.scalar_type())));
  }
};

/// \throws c10::ValueError, c10::Error  the device cannot be used.
void check_change(const Change& change) {
  SHARD_CHECK_TYPE(!change.dtype || at::isFloatingType(*change.dtype) || at::isComplexType(*change.dtype),
                   "parameters can only be converted to floating-point or complex dtypes, but got ", *change.dtype);
  if (!change.device || !change.device->is_cuda()) return;
  const at::Device current = current_cuda_device();
  SHARD_CHECK_VALUE(!change.device->has_index() || *change.device == current, "sharded parameters move to the current ",
                    "CUDA device, ", current, ", not to ", *change.device);
}

void check_parameter(const std::string& name, const at::Tensor& parameter) {
  SHARD_CHECK_NOT_IMPLEMENTED(!dtensor::DTensor::of(parameter).defined(), "cannot move the parameter '", name,
                              "': it is a DTensor; distribute the moved tensor");
  const ShardedTensor sharded = ShardedTensor::of(parameter);
  SHARD_CHECK_NOT_IMPLEMENTED(!sharded.defined() || !sharded.init_rrefs(), "cannot move the parameter '", name,
                              "': other ranks have references to its shards (init_rrefs)");
}

/// New elements for existing tensors, in the order in which they are set: gradients follow their parameters.
class Changes {
 public:
  Changes(const torch::nn::Module& module, const Change& change) {
    for (const auto& each : module.named_parameters()) {
      if (each.value().defined()) check_parameter(each.key(), each.value());
    }
    for (const auto& each : module.named_parameters()) add(each.value(), change);
    for (const auto& each : module.named_buffers()) add(each.value(), change);
    for (const LocalParameter& each : named_local_parameters(module)) {
      if (each.tensor.grad().defined()) gradients_.emplace_back(each.tensor, change(each.tensor.grad()));
    }
  }
  void apply() {
    for (auto& [tensor, data] : data_) tensor.set_data(data);
    for (auto& [tensor, gradient] : gradients_) tensor.mutable_grad() = std::move(gradient);
  }

 private:
  void add(const at::Tensor& tensor, const Change& change) {
    if (tensor.defined()) data_.emplace_back(tensor, change(tensor));
  }

  std::vector<std::pair<at::Tensor, at::Tensor>> data_, gradients_;
};

at::Tensor copied(const at::Tensor& parameter, const std::optional<at::Device>& device) {
  if (!parameter.defined()) return {};
  const at::NoGradGuard no_grad;
  const ShardedTensor sharded = ShardedTensor::of(parameter);
  if (sharded.defined()) {
    return requires_grad_(sharded.to({.device = device, .copy = true}), sharded.requires_grad()).as_tensor();
  }
  const at::Tensor copy = parameter.detach().to(device.value_or(parameter.device()), parameter.scalar_type(),
                                                /*non_blocking=*/false, /*copy=*/true);
  return copy.set_requires_grad(parameter.requires_grad());
}

}  // namespace

void to(torch::nn::Module& module, std::optional<at::Device> device, std::optional<at::ScalarType> dtype,
        const ProcessGroupPtr& group) {
  const ProcessGroupPtr ranks = group_or_default(group);
  ranks->member_group();
  const at::NoGradGuard no_grad;
  const Change change{device, dtype};
  std::optional<Changes> changes;
  agree_on(ranks->group(), [&]() -> Words {
    check_change(change);
    changes.emplace(module, change);
    return {device ? c10::str("device=", at::Device(device->type())) : "device=None",
            dtype ? c10::str("dtype=", *dtype) : "dtype=None"};
  });
  changes->apply();
}

void LayerBase::zero_grad(bool set_to_none) {
  for (const LocalParameter& each : named_local_parameters(*this)) {
    at::Tensor& gradient = each.tensor.mutable_grad();
    if (!gradient.defined()) continue;
    gradient = gradient.detach();
    set_to_none ? gradient.reset() : void(gradient.zero_());
  }
}

void LayerBase::save(torch::serialize::OutputArchive&) const { SHARD_CHECK_NOT_IMPLEMENTED(false, kNoArchive); }
void LayerBase::load(torch::serialize::InputArchive&) { SHARD_CHECK_NOT_IMPLEMENTED(false, kNoArchive); }

void LayerBase::copy_parameters(const std::optional<at::Device>& device) {
  for (auto& parameter : parameters_) parameter.value() = copied(parameter.value(), device);
  bind_parameters();
}

}  // namespace shard::parallel
