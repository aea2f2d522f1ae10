#include "formats/deepspeed/state_values.h"

namespace shard::deepspeed {

namespace {

ParamGroup read_group(Arena& arena, const Value& value) {
  ParamGroup group;
  const std::span<Value*> items = pickle::mapping(value, "param_shapes");
  for (std::size_t i = 0; i + 1 < items.size(); i += 2) {
    arena.charge(Charge::kShards);
    group.push_back({pickle::string(*items[i], "param_shapes"), pickle::dims(arena, *items[i + 1], "param_shapes")});
  }
  return group;
}

}  // namespace

Value* find_value(const Value& mapping, std::string_view key) {
  Value* value = find_key(mapping, key);
  return value == nullptr || value->kind == ValueKind::kNone ? nullptr : value;
}

Value& need_value(const Value& mapping, std::string_view key) {
  Value* value = find_value(mapping, key);
  if (value == nullptr) throw pickle::malformed(key, "it is not there");
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
