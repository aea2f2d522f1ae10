#include "formats/megatron/indexed_states.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "formats/parts/pickle/attributes.h"
#include "formats/torch/saved_file.h"

namespace shard::megatron {

namespace {

constexpr std::string_view kMastersKey = "fp32_from_fp16_params";
constexpr std::size_t kMaxStates = 16;

/// The dict of torch's optimizer inside Megatron's. If Megatron's has no master weights, it is that dict itself.
const Value* torch_optimizer(const RankStates& rank) {
  const Value* const outer = find_key(*rank.root, "optimizer");
  const Value* const inner = outer == nullptr ? nullptr : find_key(*outer, "optimizer");
  const Value* const found = inner != nullptr ? inner : outer;
  return found != nullptr && is_mapping(*found) ? found : nullptr;
}

std::span<Value*> states_of(const RankStates& rank) {
  const Value* const optimizer = torch_optimizer(rank);
  const Value* const state = optimizer == nullptr ? nullptr : find_key(*optimizer, "state");
  return state == nullptr ? std::span<Value*>() : mapping_items(*state);
}

/// A parameter in the numbering of an optimizer's groups.
struct Parameter {
  std::string_view name;  ///< The name in its rank's file.
  std::size_t chunk = 0;
  const TensorView* view = nullptr;  ///< The copy in the model.
};

/// A state of a parameter, or its master weights.
struct State {
  std::size_t parameter = 0;
  std::string_view name;
  TensorView view;
};

bool is_half(DType dtype) { return dtype == DType::kBfloat16 || dtype == DType::kFloat16; }

/// The states of one rank by parameter; nothing if the assignment is not certain.
class RankIndex {
 public:
  RankIndex(Arena& arena, const Save& save, const RankStates& rank)
      : arena_(arena), hidden_(arena), save_(save), rank_(rank) {}

  bool read() {
    const Value* const optimizer = torch_optimizer(rank_);
    const Value* const groups = optimizer == nullptr ? nullptr : find_key(*optimizer, "param_groups");
    if (groups == nullptr || groups->kind != ValueKind::kList) return false;
    for_each_parameter([this](const Parameter&) { ++count_; });
    for (const Value* group : groups->items()) {
      if (!number_group(*group)) return false;
    }
    return parameters_.size() == count_ && read_states() && read_masters();
  }

  std::span<const Parameter> parameters() const { return parameters_; }
  std::span<const State> states() const { return states_; }

 private:
  template <class Visit>
  void for_each_parameter(const Visit& visit) const {
    for (std::size_t chunk = 0; chunk < rank_.chunks.size(); ++chunk) {
      for (const auto& [name, view] : rank_.chunks[chunk].tensors.entries()) {
        if (is_parameter(name)) visit(Parameter{name, chunk, &view});
      }
    }
  }

  /// Adds the parameters that the group must have by its own settings, under its numbers.
  bool number_group(const Value& group) {
    const Value* const decay = find_key(group, "wd_mult");
    const Value* const numbers = find_key(group, "params");
    if (decay == nullptr || decay->kind != ValueKind::kFloat || numbers == nullptr) return false;
    const Value* const experts = find_key(group, "is_expert_parallel");
    const bool are_experts = experts != nullptr && experts->boolean();
    std::size_t next = parameters_.size();
    arena_.charge(Charge::kVisits, static_cast<std::int64_t>(count_));
    for_each_parameter([&](const Parameter& each) {
      const bool is_expert =
          save_.arguments.expert > 1 && meaning_of(each.name, false).experts != Meaning::Experts::kNone;
      const bool decays = each.view->shape.size() != 1 && !each.name.ends_with(".bias");
      if (is_expert == are_experts && decays == (decay->real != 0)) parameters_.push_back(each);
    });
    const std::vector<std::int64_t> indices = pickle::naturals(*numbers, "params");
    if (indices.size() != parameters_.size() - next) return false;
    for (const std::int64_t index : indices) {
      if (!by_index_.try_emplace(index, next++).is_new) return false;
    }
    groups_.push_back(indices.size());
    return true;
  }

  std::optional<TensorView> tensor(const Value& value) {
    const bool wrapped = torch_save::is_parameter(value, hidden_);
    return torch_save::as_tensor(arena_, wrapped ? *value.items()[0] : value);
  }

  bool read_states() {
    const std::span<Value*> items = states_of(rank_);
    for (std::size_t i = 0; i + 1 < items.size(); i += 2) {
      const std::size_t* const parameter =
          items[i]->kind == ValueKind::kInt ? by_index_.find(items[i]->number) : nullptr;
      const std::span<Value*> states = mapping_items(*items[i + 1]);
      if (parameter == nullptr || states.size() > 2 * kMaxStates) return false;
      for (std::size_t k = 0; k + 1 < states.size(); k += 2) {
        const std::optional<TensorView> view = tensor(*states[k + 1]);
        if (!view || view->shape.empty()) continue;
        if (!states[k]->is_string() || !add(*parameter, states[k]->text(), *view)) return false;
      }
    }
    return true;
  }

  bool add(std::size_t parameter, std::string_view name, const TensorView& view) {
    if (view.shape != parameters_[parameter].view->shape) return false;
    arena_.charge(Charge::kShards);
    states_.push_back({parameter, name, view});
    return true;
  }

  /// Reads the master weights of 16-bit parameters, by group.
  bool read_masters() {
    const Value* const outer = find_key(*rank_.root, "optimizer");
    const Value* const masters = find_key(*outer, kMastersKey);
    if (masters == nullptr) return true;
    if (masters->kind != ValueKind::kList || masters->items().size() != groups_.size()) return false;
    std::size_t parameter = 0;
    for (std::size_t group = 0; group < groups_.size(); ++group) {
      const std::span<Value*> items = masters->items()[group]->items();
      std::size_t next = 0;
      for (const std::size_t end = parameter + groups_[group]; parameter < end; ++parameter) {
        if (!is_half(parameters_[parameter].view->dtype)) continue;
        const std::optional<TensorView> view = next < items.size() ? tensor(*items[next++]) : std::nullopt;
        if (!view || !add(parameter, kMasters, *view)) return false;
      }
      if (next != items.size()) return false;
    }
    return true;
  }

  Arena& arena_;
  torch_save::HiddenTensors hidden_;
  const Save& save_;
  const RankStates& rank_;
  std::size_t count_ = 0;              ///< The number of all parameters.
  std::vector<Parameter> parameters_;  ///< In the order of groups.
  std::vector<std::size_t> groups_;    ///< The number of parameters in each group.
  HashMap<std::int64_t, std::size_t> by_index_;
  std::vector<State> states_;
};

}  // namespace

bool has_indexed_states(const RankStates& rank) {
  const Value* const outer = find_key(*rank.root, "optimizer");
  return outer != nullptr && (find_key(*outer, kMastersKey) != nullptr || !states_of(rank).empty());
}

bool add_indexed_states(Wholes& wholes, Arena& arena, const Save& save) {
  std::vector<RankIndex> all;
  for (const RankStates& rank : save.ranks) {
    all.emplace_back(arena, save, rank);
    if (!has_indexed_states(rank) || !all.back().read()) return false;
  }
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    const std::int64_t stage = save.ranks[rank].rank.pipeline;
    for (const State& state : all[rank].states()) {
      const Parameter& parameter = all[rank].parameters()[state.parameter];
      const Meaning meaning = wholes.meaning(parameter.name, stage, static_cast<std::int64_t>(parameter.chunk));
      const Dims shape = state.view.shape, strides = state.view.strides;
      wholes.add_state(state.name, meaning, rank, wholes.store(rank, save.ranks[rank].file, state.view),
                       {{shape.begin(), shape.end()}, {strides.begin(), strides.end()}, state.view.first});
    }
  }
  return true;
}

namespace {

/// The mapping with a different value under a key; without the key if `value` is null.
Value* with_value(Arena& arena, const Value& mapping, std::string_view key, Value* value) {
  std::vector<Value*> items;
  const std::span<Value*> all = mapping_items(mapping);
  for (std::size_t i = 0; i + 1 < all.size(); i += 2) {
    const bool is_it = all[i]->is_string() && all[i]->text() == key;
    if (!is_it || value != nullptr) items.insert(items.end(), {all[i], is_it ? value : all[i + 1]});
  }
  return make_list(arena, ValueKind::kDict, items);
}

}  // namespace

Value* without_indexed_states(Arena& arena, const RankStates& rank) {
  const Value& outer = *find_key(*rank.root, "optimizer");
  std::vector<Value*> states;
  const std::span<Value*> all = states_of(rank);
  for (std::size_t i = 0; i + 1 < all.size(); i += 2) {
    std::vector<Value*> kept;
    const std::span<Value*> items = mapping_items(*all[i + 1]);
    for (std::size_t k = 0; k + 1 < items.size(); k += 2) {
      const std::optional<TensorView> view = torch_save::as_tensor(arena, *items[k + 1]);
      if (!view || view->shape.empty()) kept.insert(kept.end(), {items[k], items[k + 1]});
    }
    if (!kept.empty()) states.insert(states.end(), {all[i], make_list(arena, ValueKind::kDict, kept)});
  }
  const Value* const inner = torch_optimizer(rank);
  Value* const rest = states.empty() ? nullptr : make_list(arena, ValueKind::kDict, states);
  if (inner == &outer || inner == nullptr) return with_value(arena, outer, "state", rest);
  Value* const torch = with_value(arena, *inner, "state", rest);
  return with_value(arena, *with_value(arena, outer, kMastersKey, nullptr), "optimizer", torch);
}

}  // namespace shard::megatron
