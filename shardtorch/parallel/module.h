/// \file
/// torch::nn's functions for modules with sharded parameters: to, clone, zero_grad, printing. docs/training.md lists
/// which of them work.
#pragma once

#include <torch/nn/module.h>

#include <memory>
#include <optional>
#include <string>

#include "shardtorch/sharded_tensor/process_group.h"

namespace shard::parallel {

/// The form of a layer's new parameters.
struct ParameterOptions {
  std::optional<at::Device> device{};     ///< Nothing: the device of the whole layer; the CPU if the layer is new.
  std::optional<at::ScalarType> dtype{};  ///< Nothing: that of the whole layer; torch's default if the layer is new.
};

/// Moves and converts all parameters, buffers and gradients of `module` and its children in place, so that optimizers
/// keep their parameters. As in Python's Module.to, integers keep their dtype. Either everything changes, on all ranks,
/// or nothing does, because all results are computed first. A collective of `group` (null: the default group), which
/// must contain all ranks of all shards. Nothing: unchanged.
/// \throws c10::TypeError  `dtype` is neither floating-point nor complex; c10::NotImplementedError  a DTensor
///   parameter, or one with init_rrefs; c10::ValueError  ranks differ in the arguments, or a CUDA device is not the
///   current one; c10::Error  CUDA is missing, or memory is too small. One rank's error is thrown on all.
/// Memory: temporarily a second copy of all parameters, buffers and gradients that change.
void to(torch::nn::Module& module, std::optional<at::Device> device, std::optional<at::ScalarType> dtype = std::nullopt,
        const ProcessGroupPtr& group = nullptr);

/// The common part of this folder's layers.
class LayerBase : public torch::nn::Module {
 public:
  /// Also clears the gradients of local shards.
  void zero_grad(bool set_to_none = true) override;
  /// \throws c10::NotImplementedError  always: torch::save has no sharded parameters. Names the functions to use.
  void save(torch::serialize::OutputArchive& archive) const override;
  void load(torch::serialize::InputArchive& archive) override;

 protected:
  /// Gives this layer separate copies of its parameters, on `device` if one is given.
  void copy_parameters(const std::optional<at::Device>& device);
  /// Sets the members that are registered as parameters.
  virtual void bind_parameters() {}
};

/// A layer that can be cloned, alone and in a torch::nn::Cloneable. No communication.
template <class Self>
class Layer : public LayerBase {
 public:
  std::shared_ptr<torch::nn::Module> clone(const std::optional<at::Device>& device = std::nullopt) const override {
    auto copy = std::make_shared<Self>(static_cast<const Self&>(*this));
    copy->copy_parameters(device);
    return copy;
  }

 protected:
  using LayerBase::copy_parameters;

 private:
  /// Called when a module that contains this one is cloned.
  void clone_(torch::nn::Module& other, const std::optional<at::Device>& device) override {
    static_cast<Self&>(*this) = dynamic_cast<const Self&>(*other.clone(device));
  }
};

}  // namespace shard::parallel
