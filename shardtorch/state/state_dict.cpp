#include "shardtorch/state/state_dict.h"

#include <ATen/ATen.h>
#include <torch/nn/module.h>

#include <functional>
#include <mutex>
#include <unordered_set>
#include <utility>

#include "shardtorch/sharded_tensor/builtin_ops.h"
#include "shardtorch/sharded_tensor/errors.h"
#include "shardtorch/sharded_tensor/modules.h"

namespace shard {

namespace {

/// Parts of a key; prefixes may end in a dot already.
std::string joined(const std::string& path, const std::string& name) {
  return path.empty() || path.ends_with('.') ? path + name : path + "." + name;
}

/// `visit(key, member)` for every sharded attribute, of the module itself first.
void for_each_attribute(const torch::nn::Module& module, const std::string& prefix,
                        const std::function<void(const std::string& key, ShardedTensor& member)>& visit) {
  const auto visit_one = [&](const torch::nn::Module& each, const std::string& path) {
    const auto* holder = dynamic_cast<const ShardedAttributes*>(&each);
    if (holder == nullptr) return;
    for (const ShardedAttributes::Attribute& attribute : holder->sharded_attributes()) {
      visit(joined(path, attribute.name), *attribute.tensor);
    }
  };
  visit_one(module, prefix);
  for (const auto& below : module.named_modules({}, false)) visit_one(*below.value(), joined(prefix, below.key()));
}

/// Parameters, then buffers.
void for_each_tensor(const torch::nn::Module& module, const std::string& prefix,
                     const std::function<void(const std::string& key, const at::Tensor& tensor)>& visit) {
  for (const auto& parameter : module.named_parameters()) visit(joined(prefix, parameter.key()), parameter.value());
  for (const auto& buffer : module.named_buffers()) visit(joined(prefix, buffer.key()), buffer.value());
}

void set(StateDict& state, const std::string& key, const at::Tensor& tensor) {
  if (c10::IValue* known = state.find(key)) {
    *known = tensor;
  } else {
    state.insert(key, tensor);
  }
}

ShardedTensor sharded_in(const StateDict& state, const std::string& key) {
  const c10::IValue* value = state.find(key);
  return value != nullptr && value->isTensor() ? ShardedTensor::of(value->toTensor()) : ShardedTensor();
}

void copy_shards(const std::string& key, const ShardedTensor& to, const ShardedTensor& from) {
  SHARD_CHECK(from.defined() && copy_local_shards(to, from), "Error(s) in loading state_dict: ", key,
              " is sharded, its shards here are others than those of the state");
}

void copy_value(const std::string& key, at::Tensor to, const c10::IValue& value) {
  SHARD_CHECK(value.isTensor(), "Error(s) in loading state_dict: ", key, " is a ", value.tagKind(), ", no tensor");
  const at::Tensor& from = value.toTensor();
  const at::NoGradGuard no_grad;
  if (const ShardedTensor sharded = ShardedTensor::of(to); sharded.defined()) {
    return copy_shards(key, sharded, ShardedTensor::of(from));
  }
  SHARD_CHECK(!ShardedTensor::of(from).defined(), "Error(s) in loading state_dict: ", key, " is not sharded here");
  SHARD_CHECK(to.sizes() == from.sizes(), "Error(s) in loading state_dict: size mismatch for ", key,
              ": copying a param with shape ", from.sizes(), ", the shape in current model is ", to.sizes());
  to.copy_(from);
}

/// The group of LoadWithProcessGroup.
struct LoadGroup {
  std::mutex mutex;
  ProcessGroupPtr group;
};
LoadGroup& load_group() {
  static LoadGroup scope;
  return scope;
}

}  // namespace

void state_dict_hook(const torch::nn::Module& module, StateDict& destination, const std::string& prefix) {
  for_each_attribute(module, prefix, [&destination](const std::string& key, const ShardedTensor& member) {
    if (member.defined()) set(destination, key, member.as_tensor());
  });
}

void pre_load_state_dict_hook(torch::nn::Module& module, const StateDict& state, const std::string& prefix) {
  for_each_attribute(module, prefix, [&state](const std::string& key, ShardedTensor& member) {
    if (ShardedTensor loaded = sharded_in(state, key); loaded.defined()) member = std::move(loaded);
  });
}

StateDict state_dict(const torch::nn::Module& module, const std::string& prefix) {
  StateDict state;
  for_each_tensor(module, prefix, [&state](const std::string& key, const at::Tensor& tensor) {
    if (tensor.defined()) set(state, key, tensor);
  });
  state_dict_hook(module, state, prefix);
  return state;
}

LoadStateResult load_state_dict(torch::nn::Module& module, const StateDict& state, bool strict) {
  pre_load_state_dict_hook(module, state);
  LoadStateResult result;
  std::unordered_set<std::string> known;
  for_each_attribute(module, {}, [&](const std::string& key, const ShardedTensor& member) {
    known.insert(key);
    if (member.defined() && !sharded_in(state, key).defined()) result.missing_keys.push_back(key);
  });
  std::vector<std::pair<std::string, at::Tensor>> found;
  for_each_tensor(module, {}, [&](const std::string& key, const at::Tensor& tensor) {
    known.insert(key);
    if (!tensor.defined()) return;
    if (state.contains(key)) return void(found.emplace_back(key, tensor));
    result.missing_keys.push_back(key);
  });
  for (const auto& item : state) {
    if (!known.contains(item.key())) result.unexpected_keys.push_back(item.key());
  }
  SHARD_CHECK(!strict || (result.missing_keys.empty() && result.unexpected_keys.empty()),
              "Error(s) in loading state_dict: Missing key(s): ", result.missing_keys,
              ". Unexpected key(s): ", result.unexpected_keys);
  for (const auto& [key, tensor] : found) copy_value(key, tensor, state[key]);
  return result;
}

LoadWithProcessGroup::LoadWithProcessGroup(ProcessGroupPtr group) {
  const std::scoped_lock lock(load_group().mutex);
  SHARD_CHECK(load_group().group == nullptr,
              "ProcessGroup already set by previous \"load_with_process_group\" context manager");
  load_group().group = std::move(group);
}

LoadWithProcessGroup::~LoadWithProcessGroup() {
  const std::scoped_lock lock(load_group().mutex);
  load_group().group = nullptr;
}

ProcessGroupPtr current_load_group() {
  {
    const std::scoped_lock lock(load_group().mutex);
    if (load_group().group != nullptr) return load_group().group;
  }
  return default_group();
}

}  // namespace shard
