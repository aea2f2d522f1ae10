#include "shardtorch/parallel/optimizer_state.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <functional>
#include <map>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "shardtorch/parallel/optimizer_slots.h"
#include "shardtorch/parallel/parameters.h"
#include "shardtorch/sharded_tensor/builtin_ops.h"

namespace shard::parallel {

namespace {

using c10::impl::GenericDict;
using torch::optim::Optimizer;

GenericDict make_dict() { return GenericDict(c10::StringType::get(), c10::AnyType::get()); }

/// One parameter's states: of each of its local tensors one.
struct ParameterState {
  std::vector<LocalParameter> locals;
  std::vector<Slots> slots;
};

/// An optimizer's parameters by name, and the names of each group, in its order.
struct NamedStates {
  std::map<std::string, ParameterState> by_name;
  std::vector<std::vector<std::string>> groups;
};

/// Whether it is a sharded parameter of which this rank has no shard.
bool is_elsewhere(const ShardedTensor& sharded) {
  return sharded.defined() && sharded.local_shards().empty() && sharded.requires_grad();
}

/// The names, plus the sharded parameters without a shard on this rank, in the order of the module, so that all ranks
/// have the same names. Returns `names` unchanged if there is no such parameter.
std::vector<std::string> with_those_of_other_ranks(const torch::nn::Module& module, std::vector<std::string> names) {
  const std::unordered_set<std::string> here(names.begin(), names.end());
  std::unordered_set<const c10::TensorImpl*> known;
  std::vector<std::string> all;
  for (const auto& parameter : module.named_parameters()) {
    const bool is_added = is_elsewhere(ShardedTensor::of(parameter.value())) &&
                          known.insert(parameter.value().unsafeGetTensorImpl()).second;
    if (is_added || here.contains(parameter.key())) all.push_back(parameter.key());
  }
  return all.size() > names.size() ? all : names;
}

NamedStates named_states(const torch::nn::Module& module, const Optimizer& optimizer) {
  std::unordered_map<const c10::TensorImpl*, LocalParameter> known;
  for (LocalParameter& each : named_local_parameters(module)) {
    const c10::TensorImpl* const key = each.tensor.unsafeGetTensorImpl();
    known.emplace(key, std::move(each));
  }
  NamedStates states;
  for (const auto& group : optimizer.param_groups()) {
    std::vector<std::string>& names = states.groups.emplace_back();
    for (const at::Tensor& tensor : group.params()) {
      const auto found = known.find(tensor.unsafeGetTensorImpl());
      SHARD_CHECK_VALUE(found != known.end(), "the optimizer has a parameter of the shape ", tensor.sizes(),
                        " that is not a local parameter of the module");
      const LocalParameter& local = found->second;
      if (names.empty() || names.back() != local.name) names.push_back(local.name);
      const auto state = optimizer.state().find(tensor.unsafeGetTensorImpl());
      if (state == optimizer.state().end()) continue;
      states.by_name[local.name].locals.push_back(local);
      states.by_name[local.name].slots.push_back(slots_of(*state->second));
    }
  }
  // With several groups, or if some parameters are in none, the group on ranks with a shard is unknown.
  const bool has_all = states.groups.size() == 1 && optimizer.param_groups().front().params().size() == known.size();
  if (has_all) states.groups.front() = with_those_of_other_ranks(module, std::move(states.groups.front()));
  return states;
}

/// The tensors of one slot of a parameter as one value.
at::Tensor joined(const ParameterState& state, std::size_t slot) {
  const ShardedTensor& like = state.locals.front().sharded;
  if (!like.defined()) return *state.slots.front().tensors[slot].tensor;
  ShardedTensorMetadata metadata = like.metadata();
  std::vector<Shard> shards;
  for (std::size_t i = 0; i < state.locals.size(); ++i) {
    shards.emplace_back(*state.slots[i].tensors[slot].tensor,
                        like.local_shards()[state.locals[i].local_shard].metadata);
  }
  metadata.tensor_properties = TensorProperties::of(shards.front().tensor);
  return ShardedTensor::init_from_local_shards_and_global_metadata(std::move(shards), metadata, like.process_group(),
                                                                   false, like.sharding_spec())
      .as_tensor();
}

/// The same as torch.optim.optimizer._get_scalar_dtype.
at::ScalarType step_dtype() { return c10::get_default_dtype_as_scalartype() == at::kDouble ? at::kDouble : at::kFloat; }

GenericDict dict_of(const ParameterState& state) {
  GenericDict dict = make_dict();
  const Slots& first = state.slots.front();
  if (first.step != nullptr) dict.insert("step", at::scalar_tensor(static_cast<double>(*first.step), step_dtype()));
  for (std::size_t i = 0; i < first.tensors.size(); ++i) dict.insert(first.tensors[i].name, joined(state, i));
  return dict;
}

constexpr std::string_view kStates = "optim.state.";  ///< The prefix of state names in a training state.

/// Without the states of parameters that have no shard on this rank.
void drop_those_of_other_ranks(const torch::nn::Module& module, std::vector<std::string>& names) {
  std::unordered_set<std::string_view> elsewhere;
  const auto parameters = module.named_parameters();
  for (const auto& parameter : parameters) {
    if (is_elsewhere(ShardedTensor::of(parameter.value()))) elsewhere.insert(parameter.key());
  }
  std::erase_if(names, [&](std::string_view name) {
    if (!name.starts_with(kStates)) return false;
    name.remove_prefix(kStates.size());
    return elsewhere.contains(name.substr(0, name.rfind('.')));  // Slots have no dots.
  });
}

/// The changes that a state makes to an optimizer. Nothing is changed before `apply`.
class Restoring {
 public:
  Restoring(const torch::nn::Module& module, Optimizer& optimizer, const GenericDict& state)
      : states_(named_states(module, optimizer)) {
    const auto found = state.find("state");  // Checkpoints contain no empty dicts.
    const GenericDict saved = found == state.end() ? make_dict() : found->value().toGenericDict();
    for (auto& [name, own] : states_.by_name) add_state(name, own, saved);
    const c10::List<c10::IValue> groups = member(state, "param_groups").toList();
    for (std::size_t i = 0; i < states_.groups.size(); ++i)
      add_group(optimizer.param_groups()[i], states_.groups[i], groups);
  }

  void apply() const {
    const at::NoGradGuard no_grad;
    for (const auto& action : actions_) action();
  }

 private:
  static c10::IValue member(const GenericDict& dict, const char* name) {
    const auto found = dict.find(name);
    SHARD_CHECK_VALUE(found != dict.end(), "the optimizer's state has no '", name, "'");
    return found->value();
  }

  void add_state(const std::string& name, ParameterState& own, const GenericDict& saved) {
    const auto found = saved.find(name);
    SHARD_CHECK_VALUE(found != saved.end(), "the optimizer's state has nothing of '", name, "'");
    const GenericDict values = found->value().toGenericDict();
    const Slots& first = own.slots.front();
    if (first.step != nullptr) {
      const auto step = static_cast<std::int64_t>(number(member(values, "step")));
      for (const Slots& each : own.slots) actions_.push_back([to = each.step, step] { *to = step; });
    }
    for (std::size_t i = 0; i < first.tensors.size(); ++i) {
      add_copy(c10::str(name, '.', first.tensors[i].name), joined(own, i),
               member(values, first.tensors[i].name).toTensor());
    }
  }

  void add_copy(const std::string& name, const at::Tensor& to, const at::Tensor& from) {
    const ShardedTensor sharded = ShardedTensor::of(to), loaded = ShardedTensor::of(from);
    SHARD_CHECK_VALUE(sharded.defined() == loaded.defined() && to.sizes() == from.sizes() &&
                          (!sharded.defined() || has_same_boxes(sharded, loaded)),
                      "the optimizer's '", name, "' has another shape, or other shards: expected ", to.sizes(),
                      ", found ", from.sizes());
    actions_.push_back([=] { sharded.defined() ? void(copy_local_shards(sharded, loaded)) : void(to.copy_(from)); });
  }

  void add_group(torch::optim::OptimizerParamGroup& group, const std::vector<std::string>& names,
                 const c10::List<c10::IValue>& saved) {
    if (names.empty()) return;
    for (std::size_t i = 0; i < saved.size(); ++i) {
      const GenericDict candidate = saved.get(i).toGenericDict();
      const c10::List<c10::IValue> params = member(candidate, "params").toList();
      const auto is_first = [&](const c10::IValue& name) {
        return name.isString() && name.toStringRef() == names.front();
      };
      if (std::find_if(params.begin(), params.end(), is_first) == params.end()) continue;
      std::shared_ptr<torch::optim::OptimizerOptions> options = options_of(group.options(), candidate);
      actions_.push_back([&group, options] { group.set_options(options->clone()); });
      return;
    }
    SHARD_CHECK_VALUE(false, "the optimizer's state has no group of '", names.front(), "'");
  }

  NamedStates states_;
  std::vector<std::function<void()>> actions_;
};

}  // namespace

c10::IValue optimizer_state(const torch::nn::Module& module, const Optimizer& optimizer) {
  const NamedStates states = named_states(module, optimizer);
  GenericDict state = make_dict();
  c10::impl::GenericList groups(c10::AnyType::get());
  for (std::size_t i = 0; i < states.groups.size(); ++i) {
    c10::List<std::string> names;
    for (const std::string& name : states.groups[i]) {
      names.push_back(name);
      if (const auto found = states.by_name.find(name); found != states.by_name.end())
        state.insert(name, dict_of(found->second));
    }
    GenericDict group = dict_of_options(optimizer.param_groups()[i].options());
    group.insert("params", names);
    groups.push_back(group);
  }
  GenericDict all = make_dict();
  all.insert("state", state);
  all.insert("param_groups", groups);
  return all;
}

void init_optimizer_state(Optimizer& optimizer) {
  for (const auto& group : optimizer.param_groups()) {
    for (const at::Tensor& tensor : group.params()) {
      void* const key = tensor.unsafeGetTensorImpl();
      if (!tensor.requires_grad() || optimizer.state().count(key) != 0) continue;
      if (auto state = zero_state(group.options(), tensor)) optimizer.state()[key] = std::move(state);
    }
  }
}

void set_optimizer_state(const torch::nn::Module& module, Optimizer& optimizer, const c10::IValue& state) {
  SHARD_CHECK_VALUE(state.isGenericDict(), "an optimizer's state is a dict, but found a ", state.tagKind());
  init_optimizer_state(optimizer);
  Restoring(module, optimizer, state.toGenericDict()).apply();
}

StateDict training_state(const torch::nn::Module& module, const Optimizer& optimizer) {
  GenericDict model = make_dict();
  for (const auto& item : state_dict(module)) model.insert(item.key(), item.value());
  StateDict state;
  state.insert("model", model);
  state.insert("optim", optimizer_state(module, optimizer));
  return state;
}

checkpoint::LoadResult load_training_state(torch::nn::Module& module, Optimizer& optimizer, const std::string& path,
                                           ProcessGroupPtr group, const checkpoint::LoadOptions& options) {
  init_optimizer_state(optimizer);
  StateDict state = training_state(module, optimizer);
  checkpoint::LoadResult result = checkpoint::load(state, path, std::move(group), options);
  set_optimizer_state(module, optimizer, state["optim"]);
  drop_those_of_other_ranks(module, result.unexpected);
  return result;
}

}  // namespace shard::parallel
