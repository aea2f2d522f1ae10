#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <span>

#include "formats/deepspeed/state_trees.h"
#include "formats/deepspeed/states.h"
#include "formats/deepspeed/tag_folder.h"
#include "formats/torch/tensor_finder.h"

namespace shard::deepspeed {

namespace {

using pickle::malformed;

/// A copy of the mapping as a dict, without some keys.
Value* without_keys(Arena& arena, const Value& mapping, std::span<const std::string_view> keys) {
  return change_items(arena, mapping, [keys](const Value& key, Value* value) {
    return key.is_string() && std::ranges::find(keys, key.text()) != keys.end() ? nullptr : value;
  });
}

/// A stage: an integer, ZeroStageEnum(2), or getattr(ZeroStageEnum, 'gradients') as Python 3.11.0 to 3.11.3 pickle it.
std::int64_t stage_number(const Value& value) {
  static constexpr std::array<std::string_view, 4> kMembers{"disabled", "optimizer_states", "gradients", "weights"};
  if (value.is_call_of("builtins", "getattr") && value.items().size() == 2) {
    const std::string_view member = pickle::string(*value.items()[1], "zero_stage");
    return std::ranges::find(kMembers, member) - kMembers.begin();
  }
  const bool is_enum = value.kind == ValueKind::kCall && value.items().size() == 1;
  return pickle::natural(is_enum ? *value.items().front() : value, "zero_stage");
}

/// The number in a 0-d tensor, which is not distributed over ranks; null for other tensors and dtypes.
Value* number_of(Arena& arena, torch_save::SavedFiles& files, std::uint32_t file, const TensorView& view) {
  if (!view.shape.empty()) return nullptr;
  if (is_integer(view.dtype)) return make_int(arena, files.integers(file, view, 1).front());
  if (view.dtype != DType::kFloat32 && view.dtype != DType::kFloat64) return nullptr;
  const std::vector<std::byte> bytes = files.read_span(file, view, 1);
  double number = 0;
  float single = 0;
  if (view.dtype == DType::kFloat64) {
    std::memcpy(&number, bytes.data(), sizeof number);
  } else {
    std::memcpy(&single, bytes.data(), sizeof single);
    number = single;
  }
  return make_float(arena, number);
}

/// Reads the optimizer in a rank's file.
class OptimizerReader {
 public:
  OptimizerReader(Catalog& catalog, torch_save::SavedFiles& files, OptimizerStates& states)
      : arena_(*catalog.arena), files_(files), tensors_(arena_), states_(states) {}

  void read() {
    Value& zero = need_value(*states_.root, "optimizer_state_dict");
    refuse_kinds(zero);
    read_stage(zero);
    read_partition_count(need_value(zero, "partition_count"));
    const std::string_view masters = states_.is_parted() ? "fp32_flat_groups" : "single_partition_of_fp32_groups";
    read_masters(need_value(zero, masters), masters);
    read_paddings(zero);
    read_mapped_names(zero);
    states_.groups = read_groups(arena_, *states_.root);
    read_rest(zero);
    Value* const others = with_value(arena_, zero, masters, make_list(arena_, ValueKind::kList, {}));
    states_.root = with_value(arena_, *states_.root, "optimizer_state_dict", others);
  }

  /// Reads the part of rank 0's states that a universal checkpoint keeps. For stage 3 that includes its buffers, which
  /// do not show those of other ranks.
  void read_universal() {
    read_stage(*states_.root);
    if (const Value* masters = find_value(*states_.root, "fp32_flat_groups"))
      read_masters(*masters, "fp32_flat_groups");
    read_rest(*states_.root);
  }

 private:
  static constexpr std::array<std::string_view, 11> kSpread{
      "zero_stage",           "partition_count",          "fp32_flat_groups",     "single_partition_of_fp32_groups",
      "group_paddings",       "param_alignment_paddings", "param_slice_mappings", "base_optimizer_state",
      "optimizer_state_dict", "ds_zero_partition_groups", "param_shapes"};

  void read_stage(const Value& zero) {
    if (const Value* stage = find_value(zero, "zero_stage")) states_.stage = stage_number(*stage);
    if (states_.stage && (*states_.stage < 1 || *states_.stage > 3)) {
      throw malformed("zero_stage", "it is not 1, 2 or 3").found(*states_.stage);
    }
  }

  void read_masters(const Value& masters, std::string_view what) {
    for (const Value* group : pickle::sequence(masters, what)) states_.masters.push_back(flat(*group, what));
  }

  static void refuse_kinds(const Value& zero) {
    for (const std::string_view key : {"local_sub_partitions_of_fp32_groups", "ds_zero_partition_groups"}) {
      if (find_value(zero, key) == nullptr) continue;
      throw Error(ErrorCode::kUnsupported, fmt::format("cannot read an optimizer whose parts are listed as '{}'", key));
    }
    for (const std::string_view key : {"fp32_groups", "fp32_groups_flat"}) {
      if (find_value(zero, key) == nullptr || find_value(zero, "partition_count") != nullptr) continue;
      throw Error(ErrorCode::kUnsupported, "cannot read an optimizer of DeepSpeed whose weights have no names")
          .because(fmt::format("its master weights are in '{}', as without ZeRO: bfloat16 with stage 1 and "
                               "accumulation in float32 saves this",
                               key))
          .suggest(Remedy::kReadCopies);
    }
  }

  /// With experts there is one number per group, smaller for the experts' groups.
  void read_partition_count(const Value& value) {
    if (value.kind == ValueKind::kInt) {
      states_.data_ranks = pickle::natural(value, "partition_count");
      return;
    }
    states_.sharing = pickle::naturals(value, "partition_count");
    if (states_.sharing.empty()) throw malformed("partition_count", "it is empty");
    if (std::ranges::min(states_.sharing) == 0) throw malformed("partition_count", "it has a 0");
    states_.data_ranks = std::ranges::max(states_.sharing);
  }

  TensorView flat(const Value& value, std::string_view what) {
    const TensorView view = tensors_.need(value, what);
    if (view.shape.size() != 1 || (view.shape[0] > 1 && view.strides[0] != 1)) {
      throw malformed(what, "it is not one row of elements");
    }
    return view;
  }

  /// Charges the numbers, because a pickle may have one list in many places.
  std::vector<std::int64_t> naturals(const Value& value, std::string_view what) {
    arena_.charge(Charge::kVisits, std::ssize(pickle::sequence(value, what)));
    return pickle::naturals(value, what);
  }

  void read_paddings(const Value& zero) {
    constexpr std::string_view kKey = "param_alignment_paddings";
    const Value* const paddings = find_value(zero, kKey);
    if (paddings == nullptr) return;
    for (const Value* group : pickle::sequence(*paddings, kKey)) {
      states_.paddings.push_back(naturals(*group, kKey));
    }
  }

  void read_mapped_names(const Value& zero) {
    const Value* const mappings = find_value(zero, "param_slice_mappings");
    if (mappings == nullptr) return;
    for (const Value* group : pickle::sequence(*mappings, "param_slice_mappings")) {
      std::vector<std::string_view>& names = states_.mapped_names.emplace_back();
      arena_.charge(Charge::kVisits, std::ssize(pickle::mapping(*group, "param_slice_mappings")));
      for (const auto [name, fragment] : ItemPairs(pickle::mapping(*group, "param_slice_mappings"))) {
        names.push_back(pickle::string(*name, "param_slice_mappings"));
      }
    }
  }

  /// Reads the states of group number `group`: flat tensors are distributed over ranks, the rest is kept.
  Value* read_group(const Value& value, std::size_t group) {
    std::vector<Value*> rest;
    for (const auto [key, state] : ItemPairs(pickle::mapping(value, "state"))) {
      const std::string_view name = pickle::string(*key, "state");
      const std::optional<TensorView> view = tensors_.find(*state);
      Value* const number = view ? number_of(arena_, files_, states_.file, *view) : nullptr;
      if (view && number == nullptr) {
        add_state(name, group, flat(*state, name));
      } else {
        rest.insert(rest.end(), {key, number != nullptr ? number : state});
      }
    }
    Value* const dict = make_list(arena_, ValueKind::kDict, rest);
    states_.steps[static_cast<std::int64_t>(group)] = dict;
    return dict;
  }

  void add_state(std::string_view name, std::size_t group, const TensorView& view) {
    auto state = std::ranges::find(states_.states, name, &FlatState::name);
    if (state == states_.states.end()) {
      if (states_.states.size() == kMaxStates) throw malformed("state", "it contains too many kinds of tensors");
      state = states_.states.insert(state, FlatState{name, {}});
    }
    if (group >= states_.masters.size()) throw malformed("state", "it is of a group that does not exist").found(group);
    state->groups.resize(states_.masters.size());
    state->groups[group] = view;
  }

  /// Reads torch's form, {"state": {group: ...}, "param_groups": ...}, or before 0.5.10 a list of the groups' states.
  Value* read_base(const Value& base) {
    std::vector<Value*> groups;
    if (!is_mapping(base)) {
      const std::span<Value* const> items = pickle::sequence(base, "base_optimizer_state");
      for (std::size_t i = 0; i < items.size(); ++i) {
        groups.insert(groups.end(), {make_int(arena_, static_cast<std::int64_t>(i)), read_group(*items[i], i)});
      }
      return of_states(groups, {});
    }
    const Value* const state = find_value(base, "state");
    const std::span<Value*> items = state == nullptr ? std::span<Value*>() : pickle::mapping(*state, "state");
    for (const auto [number, states] : ItemPairs(items)) {
      const std::int64_t group = pickle::natural(*number, "state");
      groups.insert(groups.end(), {number, read_group(*states, static_cast<std::size_t>(group))});
    }
    read_members(base);
    constexpr std::array<std::string_view, 1> kState{"state"};
    return of_states(groups, mapping_items(*without_keys(arena_, base, kState)));
  }

  void read_members(const Value& base) {
    const Value* const groups = find_value(base, "param_groups");
    if (groups == nullptr) return;
    for (const Value* group : pickle::sequence(*groups, "param_groups")) {
      const Value* const members = is_mapping(*group) ? find_value(*group, "params") : nullptr;
      states_.members.push_back(members == nullptr ? std::vector<std::int64_t>() : naturals(*members, "param_groups"));
    }
  }

  Value* of_states(std::span<Value* const> groups, std::span<Value* const> others) {
    std::vector<Value*> items{make_string(arena_, "state"), make_list(arena_, ValueKind::kDict, groups)};
    items.insert(items.end(), others.begin(), others.end());
    return make_list(arena_, ValueKind::kDict, items);
  }

  void read_rest(const Value& zero) {
    const std::string_view key = states_.is_parted() ? "optimizer_state_dict" : "base_optimizer_state";
    std::vector<Value*> items;
    std::ranges::copy(mapping_items(*without_keys(arena_, zero, kSpread)), std::back_inserter(items));
    if (const Value* base = find_value(zero, key)) {
      items.insert(items.end(), {make_string(arena_, key), read_base(*base)});
    }
    states_.rest = make_list(arena_, ValueKind::kDict, items);
  }

  static constexpr std::size_t kMaxStates = 16;

  Arena& arena_;
  torch_save::SavedFiles& files_;
  torch_save::TensorFinder tensors_;
  OptimizerStates& states_;
};

}  // namespace

OptimizerStates read_optimizer_states(Catalog& catalog, torch_save::SavedFiles& files, const StateFile& file) {
  OptimizerStates states;
  states.file = static_cast<std::uint32_t>(catalog.files.size());
  states.ranks = file;
  open_file(catalog, files, file.name, [&](Value& root) {
    states.root = &root;
    OptimizerReader(catalog, files, states).read();
  });
  return states;
}

void read_universal_states(Catalog& catalog, torch_save::SavedFiles& files, const std::string& name,
                           UniversalStates& states) {
  states.file = static_cast<std::uint32_t>(catalog.files.size());
  open_file(catalog, files, name, [&](Value& root) {
    OptimizerStates optimizer;
    optimizer.file = states.file;
    optimizer.root = &root;
    OptimizerReader(catalog, files, optimizer).read_universal();
    states.rest = optimizer.rest;
  });
}

UniversalFile read_universal_file(Catalog& catalog, torch_save::SavedFiles& files, const std::string& path,
                                  std::string_view param, std::string_view name) {
  UniversalFile read{param, name, static_cast<std::uint32_t>(catalog.files.size()), {}, nullptr};
  Value& root = *files.add(path);
  try {
    Arena& arena = *catalog.arena;
    torch_save::TensorFinder tensors(arena);
    const Value* const held = is_mapping(root) ? find_value(root, "param") : &root;
    if (held == nullptr) throw malformed(name, "it does not contain 'param'");
    read.view = tensors.find(*held);
    read.number = read.view ? number_of(arena, files, read.file, *read.view) : nullptr;
    const bool is_number = root.kind == ValueKind::kInt || root.kind == ValueKind::kFloat;
    if (name == kStepFile && is_number) read.number = &root;
    if (name != kStepFile || read.number == nullptr) read.number = nullptr;
    if (read.number == nullptr && !read.view) throw malformed(name, "it is not a tensor").found(type_name(*held));
  } catch (Error& error) {
    throw error.in_file(catalog.files.back().path).of_tensor(param);
  }
  return read;
}

}  // namespace shard::deepspeed
