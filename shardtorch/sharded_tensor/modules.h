/// \file
/// torch::nn modules with ShardedTensors: sharded parameters, attributes and outputs.
///
/// Python's modules accept hooks and any attribute. C++ modules do not. Here, a module with sharded attributes derives
/// from ShardedAttributes and names them. A hook of Python's forward becomes a module around the given one.
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

/// Base class, beside torch::nn::Module, of modules with ShardedTensor members.
class ShardedAttributes {
 public:
  virtual ~ShardedAttributes() = default;
  struct Attribute {
    std::string name;
    ShardedTensor* tensor;  ///< The member; undefined if it is empty.
  };
  const std::vector<Attribute>& sharded_attributes() const { return attributes_; }

 protected:
  /// Names a member, which may be empty; for the constructor. Ownership: the member must live as long as this object,
  /// and the module must not move. \throws c10::ValueError  the name is in use, empty, or contains a dot.
  void register_sharded_tensor(std::string name, ShardedTensor& member);

 private:
  std::vector<Attribute> attributes_;
};

/// Replaces a parameter by its sharded form (with requires_grad on, even for the local shard). C++ modules know a
/// parameter twice, by name and as a member: shard_parameter(*fc, "weight", fc->weight, spec) replaces both, so that
/// ShardedTensor::of(fc->weight) is the result. A collective, see shard_tensor. An error on one rank is thrown on all,
/// and no module is changed. Names in errors are those of the class, without namespaces and "Impl".
/// \throws AttributeError  "Linear has no attribute `foo`"; c10::ValueError  "Expected Linear.bias to be a Tensor, but
///   found ...": the parameter or the member is not a tensor (undefined), or is sharded already; `member` and the
///   parameter are different tensors; "param: bias is not a contiguous Tensor"; errors of shard_tensor.
ShardedTensor shard_parameter(torch::nn::Module& module, const std::string& name, at::Tensor& member,
                              ShardingSpecPtr spec, int src_rank = 0, ProcessGroupPtr group = nullptr);

/// Reshards an output in place (ShardedTensor::reshard); also accepts as_tensor() of one. Ordinary tensors are returned
/// unchanged.
ShardedTensor reshard_output(ShardedTensor output, const ShardingSpecPtr& spec);
at::Tensor reshard_output(at::Tensor output, const ShardingSpecPtr& spec);
/// The local tensor of an output. If it is sharded by a chunk spec and its local size is 1, the sharding dimension is
/// squeezed away. Ordinary tensors are returned unchanged. \throws c10::NotImplementedError  see local_tensor.
at::Tensor collect_local_shard(const ShardedTensor& output);
at::Tensor collect_local_shard(const at::Tensor& output);

/// The `forward` of a module around another one. It has the same parameters, so torch::nn::AnyModule, and therefore
/// torch::nn::Sequential, accepts the module. It calls `Derived::run`.
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
/// For an inner module whose forward is overloaded or a template. AnyModule does not accept it.
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

/// A module around another one, named "inner", whose output passes through a function. It can be cloned if the inner
/// one can be (torch::nn::Cloneable).
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
  /// Called when a module that contains this one is cloned.
  void clone_(torch::nn::Module& other, const std::optional<at::Device>& device) override {
    auto& original = dynamic_cast<OutputHook&>(other);
    inner_ = replace_module("inner", std::dynamic_pointer_cast<Inner>(original.inner_->clone(device)));
  }

  std::shared_ptr<Inner> inner_;
  Hook hook_;
};

/// A module that calls `module` and reshards, or collects, its output. `module` itself does not change: called
/// directly, it returns the same as before. Keys of the new module's state begin with "inner.".
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
