#include "shardtorch/parallel/optimizer_slots.h"

#include <ATen/ATen.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>

#include <tuple>
#include <utility>

#include "shardtorch/errors.h"

namespace shard::parallel {

namespace {

using c10::impl::GenericDict;
using torch::optim::AdamOptions;
using torch::optim::AdamParamState;
using torch::optim::AdamWOptions;
using torch::optim::AdamWParamState;
using torch::optim::OptimizerOptions;
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

template <class State, class Options>
std::unique_ptr<State> zero_adam(const Options& options, const at::Tensor& parameter) {
  auto state = std::make_unique<State>();
  state->step(0);
  state->exp_avg(zeros_of(parameter));
  state->exp_avg_sq(zeros_of(parameter));
  if (options.amsgrad()) state->max_exp_avg_sq(zeros_of(parameter));
  return state;
}

template <class Options>
GenericDict adam_dict(const Options& options, bool is_decoupled) {
  GenericDict dict(c10::StringType::get(), c10::AnyType::get());
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
  dict.insert("decoupled_weight_decay", is_decoupled);
  return dict;
}

GenericDict sgd_dict(const SGDOptions& options) {
  GenericDict dict(c10::StringType::get(), c10::AnyType::get());
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

/// Calls `set` with the value of `name`, if there is one.
template <class Set>
void take(const GenericDict& dict, const char* name, const Set& set) {
  if (const auto found = dict.find(name); found != dict.end()) set(found->value());
}

bool flag(const c10::IValue& value) { return value.isBool() ? value.toBool() : number(value) != 0; }

std::tuple<double, double> pair_of(const c10::IValue& value) {
  std::vector<c10::IValue> items;
  if (value.isTuple()) items = value.toTupleRef().elements().vec();
  if (value.isList()) items = value.toList().vec();
  SHARD_CHECK_VALUE(items.size() == 2, "betas are two numbers, but found a ", value.tagKind());
  return {number(items[0]), number(items[1])};
}

template <class Options>
std::unique_ptr<OptimizerOptions> adam_options(Options options, const GenericDict& dict) {
  take(dict, "lr", [&](const c10::IValue& value) { options.lr(number(value)); });
  take(dict, "betas", [&](const c10::IValue& value) { options.betas(pair_of(value)); });
  take(dict, "eps", [&](const c10::IValue& value) { options.eps(number(value)); });
  take(dict, "weight_decay", [&](const c10::IValue& value) { options.weight_decay(number(value)); });
  take(dict, "amsgrad", [&](const c10::IValue& value) { options.amsgrad(flag(value)); });
  return std::make_unique<Options>(std::move(options));
}

std::unique_ptr<OptimizerOptions> sgd_options(SGDOptions options, const GenericDict& dict) {
  take(dict, "lr", [&](const c10::IValue& value) { options.lr(number(value)); });
  take(dict, "momentum", [&](const c10::IValue& value) { options.momentum(number(value)); });
  take(dict, "dampening", [&](const c10::IValue& value) { options.dampening(number(value)); });
  take(dict, "weight_decay", [&](const c10::IValue& value) { options.weight_decay(number(value)); });
  take(dict, "nesterov", [&](const c10::IValue& value) { options.nesterov(flag(value)); });
  return std::make_unique<SGDOptions>(std::move(options));
}

[[noreturn]] void refuse() { throw c10::ValueError("the optimizer is neither Adam nor AdamW nor SGD"); }

/// Calls with the options as their own class. \throws c10::ValueError
template <class Visit>
auto visit_options(const OptimizerOptions& options, const Visit& visit) {
  if (const auto* adam = dynamic_cast<const AdamOptions*>(&options)) return visit(*adam);
  if (const auto* adamw = dynamic_cast<const AdamWOptions*>(&options)) return visit(*adamw);
  if (const auto* sgd = dynamic_cast<const SGDOptions*>(&options)) return visit(*sgd);
  refuse();
}

struct ZeroState {
  const at::Tensor& parameter;
  using Result = std::unique_ptr<torch::optim::OptimizerParamState>;
  Result operator()(const AdamOptions& options) const { return zero_adam<AdamParamState>(options, parameter); }
  Result operator()(const AdamWOptions& options) const { return zero_adam<AdamWParamState>(options, parameter); }
  Result operator()(const SGDOptions& options) const {
    if (options.momentum() == 0) return nullptr;
    auto state = std::make_unique<SGDParamState>();
    state->momentum_buffer(zeros_of(parameter));
    return state;
  }
};

struct DictOf {
  GenericDict operator()(const AdamOptions& options) const { return adam_dict(options, false); }
  GenericDict operator()(const AdamWOptions& options) const { return adam_dict(options, true); }
  GenericDict operator()(const SGDOptions& options) const { return sgd_dict(options); }
};

struct Changed {
  const GenericDict& dict;
  template <class Options>
  std::unique_ptr<OptimizerOptions> operator()(const Options& options) const {
    if constexpr (std::is_same_v<Options, SGDOptions>) {
      return sgd_options(options, dict);
    } else {
      return adam_options(options, dict);
    }
  }
};

}  // namespace

double number(const c10::IValue& value) {
  if (value.isTensor() && value.toTensor().numel() == 1) return value.toTensor().item<double>();
  SHARD_CHECK_VALUE(value.isScalar(), "an optimizer's state has a ", value.tagKind(), " where a number belongs");
  return value.toScalar().toDouble();
}

Slots slots_of(torch::optim::OptimizerParamState& state) {
  if (auto* adam = dynamic_cast<AdamParamState*>(&state)) return adam_slots(*adam);
  if (auto* adamw = dynamic_cast<AdamWParamState*>(&state)) return adam_slots(*adamw);
  if (auto* sgd = dynamic_cast<SGDParamState*>(&state)) {
    if (!sgd->momentum_buffer().defined()) return {};
    return {nullptr, {{"momentum_buffer", &sgd->momentum_buffer()}}};
  }
  refuse();
}

std::unique_ptr<torch::optim::OptimizerParamState> zero_state(const OptimizerOptions& options,
                                                              const at::Tensor& parameter) {
  return visit_options(options, ZeroState{parameter});
}

GenericDict dict_of_options(const OptimizerOptions& options) { return visit_options(options, DictOf{}); }

std::unique_ptr<OptimizerOptions> options_of(const OptimizerOptions& options, const GenericDict& dict) {
  return visit_options(options, Changed{dict});
}

}  // namespace shard::parallel
