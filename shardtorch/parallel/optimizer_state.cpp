#include "shardtorch/parallel/optimizer_state.h"

#include <ATen/ATen.h>
#include <ATen/core/ivalue.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "shardtorch/errors.h"
#include "shardtorch/parallel/parameters.h"
#include "shardtorch/sharded_tensor/builtin_ops.h"

namespace shard::parallel {

namespace {

// States and options of torch::optim's Adam, AdamW and SGD under Python's names.

struct Slot {
  const char* name;    ///< "exp_avg"
  at::Tensor* tensor;  ///< Defined.
};

/// The members of a parameter's state. Ownership: they are part of the state.
struct Slots {
  std::int64_t* step = nullptr;  ///< Null if the class has no step counter.
  std::vector<Slot> tensors;
};

using c10::impl::GenericDict;
using torch::optim::AdamOptions;
using torch::optim::AdamParamState;
using torch::optim::AdamWOptions;
using torch::optim::AdamWParamState;
using torch::optim::Optimizer;
using torch::optim::OptimizerOptions;
using torch::optim::OptimizerParamState;
using torch::optim::SGDOptions;
using torch::optim::SGDParamState;

template <class State>
Slots adam_slots(State& state) {
  Slots slots{&state.step(), {{"exp_avg", &state.exp_avg()}, {"exp_avg_sq", &state.exp_avg_sq()}}};
  if (state.max_exp_avg_sq().defined()) slots.tensors.push_back({"max_exp_avg_sq", &state.max_exp_avg_sq()});
  return slots;
}

at::Tensor zeros_of(const at::Tensor& parameter) {
  return at::zeros_like(parameter.detach(), at::MemoryFormat::Preserve);
}

template <class Options>
std::unique_ptr<OptimizerParamState> new_state(const Options& options, const at::Tensor& parameter) {
  constexpr bool kDecoupled = std::is_same_v<Options, AdamWOptions>;
  auto state = std::make_unique<std::conditional_t<kDecoupled, AdamWParamState, AdamParamState>>();
  state->step(0);
  state->exp_avg(zeros_of(parameter));
  state->exp_avg_sq(zeros_of(parameter));
  if (options.amsgrad()) state->max_exp_avg_sq(zeros_of(parameter));
  return state;
}

std::unique_ptr<OptimizerParamState> new_state(const SGDOptions& options, const at::Tensor& parameter) {
  if (options.momentum() == 0) return nullptr;
  auto state = std::make_unique<SGDParamState>();
  state->momentum_buffer(zeros_of(parameter));
  return state;
}

GenericDict make_dict() { return GenericDict(c10::StringType::get(), c10::AnyType::get()); }

template <class Options>
GenericDict own_dict(const Options& options) {
  GenericDict dict = make_dict();
  dict.insert("lr", options.lr());
  dict.insert("betas", c10::ivalue::Tuple::create({std::get<0>(options.betas()), std::get<1>(options.betas())}));
  dict.insert("eps", options.eps());
  dict.insert("weight_decay", options.weight_decay());
  dict.insert("amsgrad", options.amsgrad());
  dict.insert("maximize", false);
  dict.insert("foreach", c10::IValue());
  dict.insert("capturable", false);
  dict.insert("differentiable", false);
  dict.insert("fused", c10::IValue());
  dict.insert("decoupled_weight_decay", std::is_same_v<Options, AdamWOptions>);
  return dict;
}

GenericDict own_dict(const SGDOptions& options) {
  GenericDict dict = make_dict();
  dict.insert("lr", options.lr());
  dict.insert("momentum", options.momentum());
  dict.insert("dampening", options.dampening());
  dict.insert("weight_decay", options.weight_decay());
  dict.insert("nesterov", options.nesterov());
  dict.insert("maximize", false);
  dict.insert("foreach", c10::IValue());
  dict.insert("differentiable", false);
  dict.insert("fused", c10::IValue());
  return dict;
}

/// An int, a double or a tensor of one element. \throws c10::ValueError  any other value.
double number(const c10::IValue& value) {
  if (value.isTensor() && value.toTensor().numel() == 1) return value.toTensor().item<double>();
  SHARD_CHECK_VALUE(value.isScalar(), "expected a number in the optimizer's state, found a ", value.tagKind());
  return value.toScalar().toDouble();
}

void convert(const c10::IValue& value, double& option) { option = number(value); }

void convert(const c10::IValue& value, bool& option) { option = value.isBool() ? value.toBool() : number(value) != 0; }

void convert(const c10::IValue& value, std::tuple<double, double>& option) {
  std::vector<c10::IValue> items;
  if (value.isTuple()) items = value.toTupleRef().elements().vec();
  if (value.isList()) items = value.toList().vec();
  SHARD_CHECK_VALUE(items.size() == 2, "betas are two numbers, but found a ", value.tagKind());
  option = {number(items[0]), number(items[1])};
}

/// Sets `option` to the value of `name`, if it exists.
template <class Option>
void take(const GenericDict& dict, const char* name, Option& option) {
  if (const auto found = dict.find(name); found != dict.end()) convert(found->value(), option);
}

template <class Options>
std::unique_ptr<OptimizerOptions> changed(Options options, const GenericDict& dict) {
  take(dict, "lr", options.lr());
  take(dict, "betas", options.betas());
  take(dict, "eps", options.eps());
  take(dict, "weight_decay", options.weight_decay());
  take(dict, "amsgrad", options.amsgrad());
  return std::make_unique<Options>(std::move(options));
}

std::unique_ptr<OptimizerOptions> changed(SGDOptions options, const GenericDict& dict) {
  take(dict, "lr", options.lr());
  take(dict, "momentum", options.momentum());
  take(dict, "dampening", options.dampening());
  take(dict, "weight_decay", options.weight_decay());
  take(dict, "nesterov", options.nesterov());
  return std::make_unique<SGDOptions>(std::move(options));
}

[[noreturn]] void refuse() { throw c10::ValueError("the optimizer is neither Adam nor AdamW nor SGD"); }

/// Calls with the options as objects of their own class. \throws c10::ValueError
template <class Visit>
auto visit_options(const OptimizerOptions& options, const Visit& visit) {
  if (const auto* adam = dynamic_cast<const AdamOptions*>(&options)) return visit(*adam);
  if (const auto* adamw = dynamic_cast<const AdamWOptions*>(&options)) return visit(*adamw);
  if (const auto* sgd = dynamic_cast<const SGDOptions*>(&options)) return visit(*sgd);
  refuse();
}

/// \throws c10::ValueError  a state of a different class.
Slots slots_of(OptimizerParamState& state) {
  if (auto* adam = dynamic_cast<AdamParamState*>(&state)) return adam_slots(*adam);
  if (auto* adamw = dynamic_cast<AdamWParamState*>(&state)) return adam_slots(*adamw);
  if (auto* sgd = dynamic_cast<SGDParamState*>(&state)) {
    if (!sgd->momentum_buffer().defined()) return {};
    return {nullptr, {{"momentum_buffer", &sgd->momentum_buffer()}}};
  }
  refuse();
}

/// A state before the first step; null if this class has none with these options. \throws c10::ValueError
std::unique_ptr<OptimizerParamState> zero_state(const OptimizerOptions& options, const at::Tensor& parameter) {
  return visit_options(options, [&](const auto& own) { return new_state(own, parameter); });
}

/// The options as a dict, without "params". Options that exist only in Python are included with their defaults. \throws
/// c10::ValueError
GenericDict dict_of_options(const OptimizerOptions& options) {
  return visit_options(options, [](const auto& own) { return own_dict(own); });
}

/// A copy of `options` with the values of `dict`. \throws c10::ValueError  a different class; not a number.
std::unique_ptr<OptimizerOptions> options_of(const OptimizerOptions& options, const GenericDict& dict) {
  return visit_options(options, [&](const auto& own) { return changed(own, dict); });
}

/// \throws c10::ValueError  an option of the saved group of `parameter` that `own` cannot take over, because C++ does
///   not have it or the optimizer has no state for it.
void check_options(const OptimizerOptions& own, const GenericDict& saved, const std::string& parameter) {
  const GenericDict options = dict_of_options(own);
  for (const char* name : {"amsgrad", "momentum", "maximize", "decoupled_weight_decay"}) {
    const auto in_own = options.find(name), in_saved = saved.find(name);
    if (in_own == options.end() || in_saved == saved.end()) continue;
    const double expected = number(in_own->value()), found = number(in_saved->value());
    SHARD_CHECK_VALUE((expected != 0) == (found != 0), "cannot continue the optimizer's group of '", parameter,
                      "': expected '", name, "' ", expected, ", found ", found);
  }
}

/// The states of one parameter, one for each of its local tensors.
struct ParameterState {
  std::vector<LocalParameter> locals;
  std::vector<Slots> slots;
};

/// The parameters of an optimizer by name, and the names in each of its groups, in its order.
struct NamedStates {
  std::map<std::string, ParameterState> by_name;
  std::vector<std::vector<std::string>> groups;
};

/// Whether the tensor is a sharded parameter without a shard on this rank.
bool is_elsewhere(const ShardedTensor& sharded) {
  return sharded.defined() && sharded.local_shards().empty() && sharded.requires_grad();
}

/// Adds the sharded parameters without a shard on this rank to the names, in the order of the module, so that all ranks
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
  // With several groups, or if some parameters are in no group, this rank cannot know that of ranks with a shard.
  const bool has_all = states.groups.size() == 1 && optimizer.param_groups().front().params().size() == known.size();
  if (has_all) states.groups.front() = with_those_of_other_ranks(module, std::move(states.groups.front()));
  return states;
}

/// Combines the tensors of one slot of a parameter to one value.
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

/// Does the same as torch.optim.optimizer._get_scalar_dtype.
at::ScalarType step_dtype() { return c10::get_default_dtype_as_scalartype() == at::kDouble ? at::kDouble : at::kFloat; }

GenericDict dict_of(const ParameterState& state) {
  GenericDict dict = make_dict();
  const Slots& first = state.slots.front();
  if (first.step != nullptr) dict.insert("step", at::scalar_tensor(static_cast<double>(*first.step), step_dtype()));
  for (std::size_t i = 0; i < first.tensors.size(); ++i) dict.insert(first.tensors[i].name, joined(state, i));
  return dict;
}

constexpr std::string_view kStates = "optim.state.";  ///< The prefix of state names in a training state.

/// Removes the states of parameters without a shard on this rank.
void drop_those_of_other_ranks(const torch::nn::Module& module, std::vector<std::string>& names) {
  std::unordered_set<std::string_view> elsewhere;
  const auto parameters = module.named_parameters();
  for (const auto& parameter : parameters) {
    if (is_elsewhere(ShardedTensor::of(parameter.value()))) elsewhere.insert(parameter.key());
  }
  std::erase_if(names, [&](std::string_view name) {
    if (!name.starts_with(kStates)) return false;
    name.remove_prefix(kStates.size());
    return elsewhere.contains(name.substr(0, name.rfind('.')));  // Slot names have no dots.
  });
}

/// Changes to an optimizer by a state. Nothing changes before `apply`.
class Restoring {
 public:
  Restoring(const torch::nn::Module& module, Optimizer& optimizer, const GenericDict& state)
      : states_(named_states(module, optimizer)) {
    const c10::List<c10::IValue> groups = member(state, "param_groups").toList();
    for (std::size_t i = 0; i < states_.groups.size(); ++i)
      add_group(optimizer.param_groups()[i], states_.groups[i], groups);
    const auto found = state.find("state");  // Checkpoints contain no empty dicts.
    const GenericDict saved = found == state.end() ? make_dict() : found->value().toGenericDict();
    for (auto& [name, own] : states_.by_name) add_state(name, own, saved);
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
    SHARD_CHECK_VALUE(found != saved.end(), "the optimizer's state has no entry for '", name, "'");
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
                      "the optimizer's '", name, "' has a different shape or different shards: expected ", to.sizes(),
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
      check_options(group.options(), candidate, names.front());
      std::shared_ptr<OptimizerOptions> options = options_of(group.options(), candidate);
      actions_.push_back([&group, options] { group.set_options(options->clone()); });
      return;
    }
    SHARD_CHECK_VALUE(false, "the optimizer's state has no group with the parameter '", names.front(), "'");
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
