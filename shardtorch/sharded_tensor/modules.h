/// \file
/// torch::nn modules with ShardedTensors: parameters that become sharded, attributes that are, outputs.
///
/// Python's modules take hooks and any attribute; C++ modules take neither. Here a module that has sharded attributes
/// derives from ShardedAttributes and names them, and what Python hangs onto a module's forward is a module around it.
#pragma once

#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "shardtorch/sharded_tensor/sharded_tensor.h"

namespace shard {

/// Base, beside torch::nn::Module, of modules with ShardedTensors as members.
class ShardedAttributes {
 public:
  virtual ~ShardedAttributes() = default;
  struct Attribute {
    std::string name;
    ShardedTensor* tensor;  ///< The member; undefined while it is empty.
  };
  const std::vector<Attribute>& sharded_attributes() const { return attributes_; }

 protected:
  /// Names a member, in the constructor; it may be empty. Ownership: the member must live as long as this, and the
  /// module must not move. \throws c10::ValueError  the name is taken, empty, or holds a dot.
  void register_sharded_tensor(std::string name, ShardedTensor& member);

 private:
  std::vector<Attribute> attributes_;
};

/// Replaces a parameter by its sharded form (requires_grad on, also on the local shard). C++ modules know a parameter
/// twice, by name and as a member: shard_parameter(*fc, "weight", fc->weight, spec) replaces both, so that
/// ShardedTensor::of(fc->weight) is the result. A collective, see shard_tensor; what one rank throws all throw, and no
/// module is changed. Names in errors are those of the class, without namespaces and "Impl".
/// \throws AttributeError  "Linear has no attribute `foo`"; c10::ValueError  "Expected Linear.bias to be a Tensor, but
///   found ...": the parameter or the member is not a tensor (undefined), or is sharded already; `member` is another
///   tensor than the parameter; "param: bias is not a contiguous Tensor"; what shard_tensor throws.
ShardedTensor shard_parameter(torch::nn::Module& module, const std::string& name, at::Tensor& member,
                              ShardingSpecPtr spec, int src_rank = 0, ProcessGroupPtr group = nullptr);

/// Reshards an output in place (ShardedTensor::reshard), which may be as_tensor() of one; ordinary tensors pass.
ShardedTensor reshard_output(ShardedTensor output, const ShardingSpecPtr& spec);
at::Tensor reshard_output(at::Tensor output, const ShardingSpecPtr& spec);
/// The local tensor of an output; of one that is cut by a chunk spec the sharding dimension is squeezed away where its
/// local size is 1. Outputs that are ordinary tensors pass. \throws c10::NotImplementedError  see local_tensor.
at::Tensor collect_local_shard(const ShardedTensor& output);
at::Tensor collect_local_shard(const at::Tensor& output);

/// The `forward` of a module around another: with the other's parameters, so that torch::nn::AnyModule, and thereby
/// torch::nn::Sequential, can hold it. `Derived::run` does it.
template <class Derived, class Forward>
class ForwardLike;
template <class Derived, class Inner, class Result, class... Arguments>
class ForwardLike<Derived, Result (Inner::*)(Arguments...)> {
 public:
  auto forward(Arguments... arguments) {
    return static_cast<Derived*>(this)->run(std::forward<Arguments>(arguments)...);
  }
};
template <class Derived, class Inner, class Result, class... Arguments>
class ForwardLike<Derived, Result (Inner::*)(Arguments...) const>
    : public ForwardLike<Derived, Result (Inner::*)(Arguments...)> {};
/// Of an inner module whose forward is overloaded or a template: one too, which AnyModule cannot hold.
template <class Derived>
class ForwardLike<Derived, void> {
 public:
  template <class... Arguments>
  auto forward(Arguments&&... arguments) {
    return static_cast<Derived*>(this)->run(std::forward<Arguments>(arguments)...);
  }
};

template <class Inner>
struct ForwardOf {
  using type = void;
};
template <class Inner>
requires requires { typename std::void_t<decltype(&Inner::forward)>; }
struct ForwardOf<Inner> {
  using type = decltype(&Inner::forward);
};

/// A module around another, named "inner", whose output goes through a function. It can be cloned where the inner one
/// can (torch::nn::Cloneable).
template <class Inner, class Hook>
class OutputHook : public torch::nn::Module,
                   public ForwardLike<OutputHook<Inner, Hook>, typename ForwardOf<Inner>::type> {
 public:
  OutputHook(std::shared_ptr<Inner> inner, Hook hook)
      : inner_(register_module("inner", std::move(inner))), hook_(std::move(hook)) {}
  template <class... Arguments>
  auto run(Arguments&&... arguments) {
    return hook_(inner_->forward(std::forward<Arguments>(arguments)...));
  }
  std::shared_ptr<torch::nn::Module> clone(const std::optional<at::Device>& device = std::nullopt) const override {
    return std::make_shared<OutputHook>(std::dynamic_pointer_cast<Inner>(inner_->clone(device)), hook_);
  }

 private:
  /// Called by a module that holds this one and is cloned.
  void clone_(torch::nn::Module& other, const std::optional<at::Device>& device) override {
    auto& original = dynamic_cast<OutputHook&>(other);
    inner_ = replace_module("inner", std::dynamic_pointer_cast<Inner>(original.inner_->clone(device)));
  }

  std::shared_ptr<Inner> inner_;
  Hook hook_;
};

/// A module that calls `module` and reshards, or collects, what it returns. `module` itself stays as it is: called
/// directly it returns what it did before, and the keys of the new one's state begin with "inner.".
template <class Inner>
auto reshard_output(std::shared_ptr<Inner> module, ShardingSpecPtr spec) {
  auto hook = [spec](auto output) { return reshard_output(std::move(output), spec); };
  return std::make_shared<OutputHook<Inner, decltype(hook)>>(std::move(module), hook);
}
template <class Inner>
auto collect_local_shard(std::shared_ptr<Inner> module) {
  auto hook = [](const auto& output) { return collect_local_shard(output); };
  return std::make_shared<OutputHook<Inner, decltype(hook)>>(std::move(module), hook);
}

}  // namespace shard
