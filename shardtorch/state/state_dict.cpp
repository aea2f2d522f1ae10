#include "shardtorch/state/state_dict.h"

#include <ATen/ATen.h>

#include <mutex>
#include <unordered_set>
#include <utility>

#include "shardtorch/errors.h"
#include "shardtorch/sharded_tensor/builtin_ops.h"
#include "shardtorch/sharded_tensor/modules.h"

namespace shard {

namespace {

/// Joins parts of a key. Prefixes may already end in a dot.
std::string joined(const std::string& path, const std::string& name) {
  return path.empty() || path.ends_with('.') ? path + name : path + "." + name;
}

/// Calls `visit(key, member)` for every sharded attribute, first for those of the module itself.
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

/// Visits parameters, then buffers.
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

/// The reason why `value` cannot be copied into `to`; empty if it can.
std::string mismatch_of(const std::string& key, const at::Tensor& to, const c10::IValue& value) {
  if (!value.isTensor()) return c10::str(key, " is a ", value.tagKind(), ", not a tensor");
  const at::Tensor& from = value.toTensor();
  if (!from.defined()) return c10::str(key, " is undefined");
  const ShardedTensor sharded = ShardedTensor::of(to), loaded = ShardedTensor::of(from);
  if (!sharded.defined() && loaded.defined()) return c10::str(key, " is not sharded here");
  if (to.sizes() != from.sizes()) {
    return c10::str("size mismatch for ", key, ": copying a param with shape ", from.sizes(),
                    " from checkpoint, the shape in current model is ", to.sizes());
  }
  if (sharded.defined()) {
    if (loaded.defined() && has_same_boxes(sharded, loaded)) return {};
    return c10::str(key, " is sharded, and this rank's shards differ from those in the state");
  }
  const bool is_plain = from.layout() == to.layout() && !from.is_quantized() && from.is_meta() == to.is_meta();
  return is_plain ? std::string() : c10::str(key, " is a ", from.toString(), ", here a ", to.toString());
}

/// Changes to a module by a state. Nothing changes before `apply`.
class ModuleLoad {
 public:
  ModuleLoad(torch::nn::Module& module, const StateDict& state) : module_(module), state_(state) {
    for_each_attribute(module, {}, [this](const std::string& key, const ShardedTensor& member) {
      known_.insert(key);
      if (member.defined() && !sharded_in(state_, key).defined()) keys_.missing_keys.push_back(key);
    });
    for_each_tensor(module, {}, [this](const std::string& key, const at::Tensor& tensor) {
      known_.insert(key);
      if (tensor.defined()) find(key, tensor);
    });
    for (const auto& item : state) {
      if (!known_.contains(item.key())) keys_.unexpected_keys.push_back(item.key());
    }
  }

  /// \throws c10::Error  all mismatches, in one text.
  void check(bool strict) const {
    std::string text;
    const auto list = [&text](const char* what, const std::vector<std::string>& keys) {
      if (keys.empty()) return;
      text += c10::str("\n\t", what, " key(s) in state_dict: ");
      for (const std::string& key : keys) text += c10::str(&key == keys.data() ? "\"" : ", \"", key, "\"");
      text += '.';
    };
    if (strict) {
      list("Missing", keys_.missing_keys);
      list("Unexpected", keys_.unexpected_keys);
    }
    for (const std::string& mismatch : mismatches_) text += "\n\t" + mismatch + '.';
    SHARD_CHECK(text.empty(), "Error(s) in loading state_dict:", text);
  }

  LoadStateResult apply() {
    pre_load_state_dict_hook(module_, state_);
    const at::NoGradGuard no_grad;
    for (const auto& [to, from] : copies_) {
      const ShardedTensor sharded = ShardedTensor::of(to);
      sharded.defined() ? void(copy_local_shards(sharded, ShardedTensor::of(from))) : void(at::Tensor(to).copy_(from));
    }
    return std::move(keys_);
  }

 private:
  void find(const std::string& key, const at::Tensor& tensor) {
    const c10::IValue* value = state_.find(key);
    if (value == nullptr) return keys_.missing_keys.push_back(key);
    std::string mismatch = mismatch_of(key, tensor, *value);
    if (!mismatch.empty()) return mismatches_.push_back(std::move(mismatch));
    copies_.emplace_back(tensor, value->toTensor());
  }

  torch::nn::Module& module_;
  const StateDict& state_;
  std::unordered_set<std::string> known_;
  LoadStateResult keys_;
  std::vector<std::string> mismatches_;
  std::vector<std::pair<at::Tensor, at::Tensor>> copies_;  ///< (to, from).
};

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
  ModuleLoad load(module, state);
  load.check(strict);
  return load.apply();
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
