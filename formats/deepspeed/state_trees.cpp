#include "formats/deepspeed/state_trees.h"

#include <array>

#include "formats/parts/pickle/attributes.h"
#include "libshard/core/error.h"

namespace shard::deepspeed {

namespace {

Value* list_of(Arena& arena, std::span<const std::int64_t> numbers, Value* (*make)(Arena&, std::int64_t)) {
  std::vector<Value*> items;
  for (const std::int64_t number : numbers) items.push_back(make(arena, number));
  return make_list(arena, ValueKind::kList, items);
}

/// The counts of the new groups, taken from those of the old ones.
Value* counts_of(Arena& arena, const Value& old, const NewSpread& spread) {
  if (old.kind == ValueKind::kInt) return make_int(arena, spread.ranks);
  return list_of(arena, std::vector<std::int64_t>(spread.groups.groups.size(), spread.ranks), make_int);
}

/// param_shapes with the parameters of the new groups, each with its name and shape in the file.
Value* shapes_of(Arena& arena, const Value& old, const NewSpread& spread) {
  HashMap<std::string_view, std::array<Value*, 2>> pairs;
  const Value* like = nullptr;
  for (const Value* group : pickle::sequence(old, "param_shapes")) {
    like = group;
    for (const auto [name, shape] : ItemPairs(pickle::mapping(*group, "param_shapes"))) {
      pairs[name->text()] = {name, shape};
    }
  }
  if (like == nullptr) return make_list(arena, ValueKind::kList, {});
  std::vector<Value*> groups;
  for (const NewGroup& group : spread.groups.groups) {
    std::vector<Value*> items;
    for (const ParamShape& param : group.params) {
      const std::array<Value*, 2>* const pair = pairs.find(param.name);
      if (pair == nullptr) throw pickle::malformed("param_shapes", "a parameter is missing").of_tensor(param.name);
      items.insert(items.end(), pair->begin(), pair->end());
    }
    groups.push_back(with_items(arena, *like, items));
  }
  return make_list(arena, ValueKind::kList, groups);
}

Value* with_shapes(Arena& arena, Value& root, const NewSpread& spread) {
  const Value* const shapes = find_value(root, "param_shapes");
  if (!spread.groups.differ || shapes == nullptr || is_mapping(*shapes)) return &root;
  return with_value(arena, root, "param_shapes", shapes_of(arena, *shapes, spread));
}

/// Makes the tree of a rank's optimizer.
class OptimizerTree {
 public:
  OptimizerTree(Arena& arena, const NewSpread& spread, const RankParts& parts)
      : arena_(arena), spread_(spread), parts_(parts) {}

  const Value* make() {
    const OptimizerStates& first = spread_.save.optimizers.front();
    Value* zero = find_key(*first.root, "optimizer_state_dict");
    Value* const masters = list_of(arena_, parts_.masters, make_tensor);
    zero =
        with_value(arena_, *zero, "partition_count", counts_of(arena_, *find_key(*zero, "partition_count"), spread_));
    if (first.is_parted()) {
      zero = with_value(arena_, *zero, "fp32_flat_groups", masters);
      zero = with_base(*zero, "optimizer_state_dict");
    } else {
      zero = with_value(arena_, *zero, "single_partition_of_fp32_groups", masters);
      zero = with_value(arena_, *zero, "group_paddings", list_of(arena_, parts_.paddings, make_int));
      zero = with_mappings(*zero);
      zero = with_base(*zero, "base_optimizer_state");
    }
    return with_shapes(arena_, *with_value(arena_, *first.root, "optimizer_state_dict", zero), spread_);
  }

 private:
  /// The state of the inner optimizer, with the new groups. It is a list with the states of each group, or the dict of
  /// the optimizer.
  Value* with_base(Value& zero, std::string_view key) {
    Value* const base = find_value(zero, key);
    if (base == nullptr) return &zero;
    if (!is_mapping(*base)) return with_value(arena_, zero, key, listed_groups(*base));
    Value* changed = base;
    if (const Value* state = find_value(*base, "state")) {
      changed = with_value(arena_, *changed, "state", numbered_groups(*state));
    }
    const Value* const groups = find_value(*base, "param_groups");
    if (groups != nullptr && spread_.groups.differ && !spread_.groups.members.empty()) {
      changed = with_value(arena_, *changed, "param_groups", with_members(*groups));
    }
    return with_value(arena_, zero, key, changed);
  }

  /// One dict of states per group. A new group takes everything but its tensors from the first old group in it.
  Value* listed_groups(const Value& base) {
    const std::span<Value* const> old = pickle::sequence(base, "base_optimizer_state");
    std::vector<Value*> groups;
    for (std::size_t g = 0; g < spread_.groups.groups.size(); ++g) {
      const std::size_t from = spread_.groups.groups[g].from.front();
      if (from >= old.size()) throw pickle::malformed("base_optimizer_state", "a group is missing");
      groups.push_back(states_of(*old[from], g));
    }
    return make_list(arena_, ValueKind::kList, groups);
  }

  /// The same as `listed_groups`, for a dict from group numbers to states.
  Value* numbered_groups(const Value& state) {
    HashMap<std::int64_t, Value*> old;
    for (const auto [number, states] : ItemPairs(state)) old[pickle::natural(*number, "state")] = states;
    std::vector<Value*> groups;
    for (std::size_t g = 0; g < spread_.groups.groups.size(); ++g) {
      Value* const* const found = old.find(static_cast<std::int64_t>(spread_.groups.groups[g].from.front()));
      if (found == nullptr) continue;  // The group has had no update.
      groups.insert(groups.end(), {make_int(arena_, static_cast<std::int64_t>(g)), states_of(**found, g)});
    }
    return with_items(arena_, state, groups);
  }

  Value* states_of(Value& old, std::size_t group) {
    Value* states = &old;
    for (const auto& [name, numbers] : parts_.states.entries()) {
      if (numbers[group] >= 0) states = with_value(arena_, *states, name, make_tensor(arena_, numbers[group]));
    }
    return states;
  }

  Value* with_members(const Value& groups) {
    std::vector<Value*> changed;
    const std::span<Value* const> old = pickle::sequence(groups, "param_groups");
    for (std::size_t g = 0; g < old.size() && g < spread_.groups.members.size(); ++g) {
      changed.push_back(with_value(arena_, *old[g], "params", list_of(arena_, spread_.groups.members[g], make_int)));
    }
    return make_list(arena_, ValueKind::kList, changed);
  }

  /// The address of each parameter in the flat buffer of the rank. Classes and further attributes are copied from an
  /// old address.
  Value* with_mappings(Value& zero) {
    const Value* const mappings = find_value(zero, "param_slice_mappings");
    if (mappings == nullptr) return &zero;
    const Value *like = nullptr, *like_group = nullptr;
    for (const Value* group : pickle::sequence(*mappings, "param_slice_mappings")) {
      const std::span<Value*> items = mapping_items(*group);
      like_group = group;
      if (like == nullptr && items.size() > 1) like = items[1];
    }
    if (like_group == nullptr) return &zero;
    std::vector<Value*> groups;
    for (const std::vector<Fragment>& fragments : parts_.fragments) {
      std::vector<Value*> items;
      for (const Fragment& fragment : fragments) {
        if (like == nullptr) throw pickle::malformed("param_slice_mappings", "it is empty");
        items.insert(items.end(), {make_string(arena_, fragment.name), address_like(*like, fragment)});
      }
      groups.push_back(with_items(arena_, *like_group, items));
    }
    return with_value(arena_, zero, "param_slice_mappings", make_list(arena_, ValueKind::kList, groups));
  }

  Value* address_like(const Value& like, const Fragment& fragment) {
    pickle::need_class(like, "fragment_address");
    pickle::need(like, "numel");
    pickle::need(like, "start");
    if (!is_mapping(*like.state())) throw pickle::malformed("fragment_address", "its state is not a dict");
    Value* const copy = copy_of_call(arena_, like);
    Value*& state = copy->call->state;
    state = with_value(arena_, *state, "numel", make_int(arena_, fragment.count));
    state = with_value(arena_, *state, "start", make_int(arena_, fragment.first));
    return copy;
  }

  Arena& arena_;
  const NewSpread& spread_;
  const RankParts& parts_;
};

}  // namespace

Value* with_value(Arena& arena, Value& mapping, std::string_view key, Value* value) {
  if (find_value(mapping, key) == nullptr) return &mapping;
  std::vector<Value*> items(mapping_items(mapping).begin(), mapping_items(mapping).end());
  for (const auto [name, item] : ItemPairs(items)) {
    if (name->is_string() && name->text() == key) item = value;
  }
  return with_items(arena, mapping, items);
}

const Value* model_tree(Arena& arena, const NewSpread& spread, const RankParts& parts) {
  Value* root = spread.save.models.front().root;
  root = with_value(arena, *root, "dp_world_size", make_int(arena, spread.ranks));
  root = with_shapes(arena, *root, spread);
  if (parts.rank > 0) {  // Only rank 0's file lists shared parameters.
    root = with_value(arena, *root, "shared_params", make_list(arena, ValueKind::kDict, {}));
  }
  Value* const frozen = find_value(*root, "frozen_param_fragments");
  if (frozen == nullptr || parts.frozen.empty()) return root;
  std::vector<Value*> items(mapping_items(*frozen).begin(), mapping_items(*frozen).end());
  for (const auto [name, fragment] : ItemPairs(items)) {
    const std::int64_t* const number = parts.frozen.find(name->text());
    if (number != nullptr) fragment = make_tensor(arena, *number);
  }
  return with_value(arena, *root, "frozen_param_fragments", with_items(arena, *frozen, items));
}

const Value* optimizer_tree(Arena& arena, const NewSpread& spread, const RankParts& parts) {
  return OptimizerTree(arena, spread, parts).make();
}

}  // namespace shard::deepspeed
