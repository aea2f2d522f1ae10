#include "formats/deepspeed/states.h"

#include <fmt/format.h>

#include "formats/torch/tensor_finder.h"

namespace shard::deepspeed {

namespace {

template <class Mapped, class Read>
HashMap<std::string_view, Mapped> read_names(const Value& root, std::string_view key, const Read& read) {
  HashMap<std::string_view, Mapped> names;
  const Value* const value = find_value(root, key);
  if (value == nullptr) return names;
  for (const auto [name, item] : ItemPairs(pickle::mapping(*value, key))) {
    names[pickle::string(*name, key)] = read(*item);
  }
  return names;
}

void read_module(Arena& arena, torch_save::TensorFinder& tensors, const Value& module, ModelStates& states) {
  std::vector<Value*> rest;
  for (const auto [key, value] : ItemPairs(pickle::mapping(module, "module"))) {
    const std::optional<TensorView> view = key->is_string() ? tensors.find(*value) : std::nullopt;
    if (view) {
      arena.charge(Charge::kShards);
      states.module[key->text()] = *view;
    } else {
      rest.insert(rest.end(), {key, value});
    }
  }
  if (!rest.empty()) states.module_rest = make_list(arena, ValueKind::kDict, rest);
}

/// Reads ds_config["zero_optimization"], if that is plain data.
void read_configuration(const Value& root, ModelStates& states) {
  const Value* const config = find_value(root, "ds_config");
  if (config == nullptr || !is_mapping(*config)) return;
  states.stage = 0;
  const Value* const order = find_value(*config, "use_data_before_expert_parallelism");
  states.data_before_experts = order != nullptr && order->boolean();
  const Value* const zero = find_value(*config, "zero_optimization");
  if (zero == nullptr) return;
  const Value* const stage = find_value(*zero, "stage");
  if (stage != nullptr && stage->kind == ValueKind::kInt) states.stage = stage->number;
  const Value* const robin = find_value(*zero, "round_robin_gradients");
  states.round_robin = robin != nullptr && robin->boolean();
  const Value* const alignment = find_value(*zero, "parameter_alignment");
  states.aligned_params = alignment != nullptr && alignment->boolean();
  const Value* const mics = find_value(*zero, "mics_shard_size");
  states.is_mics = mics != nullptr && mics->kind == ValueKind::kInt && mics->number > 0;
  const Value* const size = find_value(*zero, "sub_group_size");
  if (size == nullptr) return;
  if (size->kind == ValueKind::kInt) states.sub_group_size = size->number;
  if (size->kind == ValueKind::kFloat && size->real >= 1 && size->real < 1e18) {
    states.sub_group_size = static_cast<std::int64_t>(size->real);  // JSON files may contain it as 1e9.
  }
}

}  // namespace

ModelStates read_model_states(Catalog& catalog, torch_save::SavedFiles& files, const StateFile& file) {
  ModelStates states;
  states.file = static_cast<std::uint32_t>(catalog.files.size());
  states.ranks = file;
  open_file(catalog, files, file.name, [&](Value& root) {
    Arena& arena = *catalog.arena;
    torch_save::TensorFinder tensors(arena);
    states.root = &root;
    // The module of a pipeline is None; its layers have separate files.
    const bool has_layers = find_key(root, "module") != nullptr && find_value(root, "module") == nullptr;
    if (!has_layers) read_module(arena, tensors, need_value(root, "module"), states);
    if (const Value* names = find_value(root, "buffer_names")) {
      for (const Value* name : pickle::sequence(*names, "buffer_names")) {
        states.buffers.insert(pickle::string(*name, "buffer_names"));
      }
    }
    states.groups = read_groups(arena, root);
    states.frozen_shapes = read_names<Dims>(root, "frozen_param_shapes", [&](const Value& shape) {
      return pickle::dims(arena, shape, "frozen_param_shapes");
    });
    states.frozen_parts = read_names<TensorView>(root, "frozen_param_fragments", [&](const Value& part) {
      return tensors.need(part, "frozen_param_fragments");
    });
    states.shared = read_names<std::string_view>(
        root, "shared_params", [](const Value& name) { return pickle::string(name, "shared_params"); });
    if (const Value* ranks = find_value(root, "dp_world_size")) {
      states.data_ranks = pickle::natural(*ranks, "dp_world_size");
    }
    read_configuration(root, states);
  });
  return states;
}

ModelStates read_part(Catalog& catalog, torch_save::SavedFiles& files, const std::string& name) {
  ModelStates states;
  states.file = static_cast<std::uint32_t>(catalog.files.size());
  open_file(catalog, files, name, [&](Value& root) {
    torch_save::TensorFinder tensors(*catalog.arena);
    states.root = &root;
    read_module(*catalog.arena, tensors, root, states);
  });
  return states;
}

ModelStates with_prefix(Arena& arena, const ModelStates& part, std::string_view prefix) {
  ModelStates named;
  named.file = part.file;
  named.root = part.root;
  const auto renamed = [&](std::string_view name) { return arena.copy(fmt::format("{}{}", prefix, name)); };
  arena.charge(Charge::kShards, std::ssize(part.module.entries()));
  for (const auto& [name, view] : part.module.entries()) named.module[renamed(name)] = view;
  if (part.module_rest == nullptr) return named;
  std::vector<Value*> rest;
  for (const auto [key, value] : ItemPairs(*part.module_rest)) {
    rest.insert(rest.end(), {key->is_string() ? make_string(arena, renamed(key->text())) : key, value});
  }
  named.module_rest = make_list(arena, ValueKind::kDict, rest);
  return named;
}

RankOptimizer read_rank_optimizer(Catalog& catalog, torch_save::SavedFiles& files, const StateFile& file) {
  RankOptimizer optimizer;
  optimizer.rank = catalog.arena->copy(fmt::format("expp_rank_{}", file.data_rank));
  optimizer.file = static_cast<std::uint32_t>(catalog.files.size());
  open_file(catalog, files, file.name, [&](Value& root) { optimizer.states = find_value(root, "optimizer"); });
  return optimizer;
}

namespace {

ParamGroup read_group(Arena& arena, const Value& value) {
  ParamGroup group;
  for (const auto [name, shape] : ItemPairs(pickle::mapping(value, "param_shapes"))) {
    arena.charge(Charge::kShards);
    group.push_back({pickle::string(*name, "param_shapes"), pickle::dims(arena, *shape, "param_shapes")});
  }
  return group;
}

}  // namespace

Value& need_value(const Value& mapping, std::string_view key) {
  Value* value = find_value(mapping, key);
  if (value == nullptr) throw pickle::malformed(key, "it is missing");
  return *value;
}

std::optional<std::vector<ParamGroup>> read_groups(Arena& arena, const Value& root) {
  const Value* const value = find_value(root, "param_shapes");
  if (value == nullptr) return std::nullopt;
  std::vector<ParamGroup> groups;
  if (is_mapping(*value)) {
    groups.push_back(read_group(arena, *value));
    return groups;
  }
  for (const Value* group : pickle::sequence(*value, "param_shapes")) groups.push_back(read_group(arena, *group));
  return groups;
}

}  // namespace shard::deepspeed
