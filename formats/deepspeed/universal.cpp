#include "formats/deepspeed/universal.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "formats/deepspeed/model_files.h"
#include "formats/deepspeed/universal_folder.h"
#include "libshard/core/error.h"
#include "libshard/io/paths.h"

namespace shard::deepspeed {

namespace {

constexpr double kVersion = 0.2;  ///< Of the form of plain data parallelism, the same in DeepSpeed 0.11.2 and later.
constexpr std::string_view kInfo = "universal_checkpoint_info";

Value* make_float(Arena& arena, double number) {
  Value* const value = make_value(arena, ValueKind::kFloat);
  value->real = number;
  return value;
}

Value* make_dict(Arena& arena, std::initializer_list<std::pair<std::string_view, Value*>> entries) {
  std::vector<Value*> items;
  for (const auto& [key, value] : entries) items.insert(items.end(), {make_string(arena, key), value});
  return make_list(arena, ValueKind::kDict, items);
}

/// A copy of a dict without these keys and with one more entry, unless it has that.
Value* without(Arena& arena, const Value& mapping, std::span<const std::string_view> keys, std::string_view added,
               Value* value) {
  std::vector<Value*> items;
  const std::span<Value*> all = mapping_items(mapping);
  for (std::size_t i = 0; i + 1 < all.size(); i += 2) {
    const std::string_view key = all[i]->is_string() ? all[i]->text() : std::string_view();
    if (std::ranges::find(keys, key) == keys.end()) items.insert(items.end(), {all[i], all[i + 1]});
  }
  if (!added.empty() && find_key(mapping, added) == nullptr) {
    items.insert(items.end(), {make_string(arena, added), value});
  }
  return make_list(arena, ValueKind::kDict, items);
}

struct Universal {
  const SaveReader* reader = nullptr;
  NewGroups groups;
  std::vector<RankParts> parts;

  NewSpread spread() const { return {reader->save(), groups, std::ssize(parts)}; }
};

/// The model's states of a rank, with what the engine asks for, which trainers do not write.
const Value* universal_model_tree(Arena& arena, const Universal& all, std::size_t rank) {
  const Value* const tree = model_tree(arena, all.spread(), all.parts[rank]);
  if (all.reader->save().is_parted()) return tree;
  return without(arena, *tree, {}, kInfo,
                 make_dict(arena, {{"universal_checkpoint_version", make_float(arena, kVersion)}}));
}

/// The states of a group without those that each parameter's folder holds.
Value* common_states(Arena& arena, const Value& states, const OptimizerStates& optimizer) {
  std::vector<std::string_view> names;
  for (const FlatState& state : optimizer.states) names.push_back(state.name);
  return without(arena, states, names, {}, nullptr);
}

/// What the optimizer says for all parameters.
const Value* common_tree(Arena& arena, const OptimizerStates& optimizer) {
  constexpr std::array<std::string_view, 3> kSharded{"base_optimizer_state", "param_slice_mappings",
                                                     "single_partition_of_fp32_groups"};
  constexpr std::array<std::string_view, 1> kFlat{"fp32_flat_groups"};
  const Value& zero = *find_key(*optimizer.root, "optimizer_state_dict");
  Value* const base = find_key(zero, optimizer.is_parted() ? "optimizer_state_dict" : "base_optimizer_state");
  Value* const groups = find_key(*base, "param_groups");
  if (!optimizer.is_parted()) return without(arena, zero, kSharded, "param_groups", groups);
  std::vector<Value*> states;
  if (const Value* state = find_key(*base, "state")) {
    const std::span<Value*> items = mapping_items(*state);
    for (std::size_t i = 0; i + 1 < items.size(); i += 2) {
      states.insert(states.end(), {items[i], common_states(arena, *items[i + 1], optimizer)});
    }
  }
  Value* const common = with_value(arena, *base, "state", make_list(arena, ValueKind::kDict, states));
  Value* const tree = without(arena, zero, kFlat, "param_groups", groups);
  return with_value(arena, *tree, "optimizer_state_dict", common);
}

void check_name(std::string_view name) {
  const bool is_name = !name.empty() && name != "." && name != ".." && name.find('/') == std::string_view::npos &&
                       name.find('\0') == std::string_view::npos;
  if (is_name) return;
  throw Error(ErrorCode::kUnsupported, fmt::format("cannot write '{}', which cannot be the name of a folder", name))
      .of_tensor(name);
}

class UniversalMaker {
 public:
  explicit UniversalMaker(const SaveReader& reader)
      : reader_(reader),
        save_(reader.save()),
        ranks_(reader.catalog().world_size.value_or(1)),
        target_files_(reader.catalog(), "deepspeed-universal"),
        all_(std::make_shared<Universal>()),
        models_(reader, ranks_) {
    check();
    all_->reader = &reader;
    all_->groups = regroup(save_, groups_of(save_), ranks_);
    all_->parts.resize(static_cast<std::size_t>(ranks_));
    for (std::size_t rank = 0; rank < all_->parts.size(); ++rank) {
      all_->parts[rank].rank = static_cast<std::int64_t>(rank);
    }
  }

  std::unique_ptr<Writer> make() {
    models_.add_frozen(target_files_, all_->parts);
    for (std::size_t rank = 0; rank < models_.count(); ++rank) {
      add_file(models_.name(rank),
               [all = all_, rank](Arena& arena) { return universal_model_tree(arena, *all, rank); });
    }
    add_file(join_path(kZeroFolder, kOptimizerFile),
             [all = all_](Arena& arena) { return common_tree(arena, all->reader->save().optimizers.front()); });
    for (std::size_t g = 0; g < all_->groups.groups.size(); ++g) {
      for (const ParamShape& param : all_->groups.groups[g].params) add_parameter(param.name, g);
    }
    return target_files_.finish(std::move(files_), {{std::string(kLatestUniversal), tag()}});
  }

  Catalog take_target() { return std::move(target_files_.target); }

 private:
  std::string tag() const { return base_name(reader_.folder().path); }

  void check() const {
    const auto refuse = [](const std::string& why) {
      throw Error(ErrorCode::kUnsupported, "cannot write the save as a universal checkpoint").because(why);
    };
    if (save_.optimizers.empty()) refuse("it has no files of ZeRO's optimizer states");
    const OptimizerStates& first = save_.optimizers.front();
    const Value* const zero = find_key(*first.root, "optimizer_state_dict");
    const Value* const base = find_key(*zero, first.is_parted() ? "optimizer_state_dict" : "base_optimizer_state");
    if (base == nullptr || !is_mapping(*base) || find_key(*base, "param_groups") == nullptr) {
      refuse("its optimizer's states are not in torch's form, with param_groups");
    }
  }

  void add_file(const std::string& path, std::function<const Value*(Arena& arena)> tree) {
    files_.push_back({join_path(tag(), path), -1, std::move(tree)});
  }

  void add_parameter(std::string_view name, std::size_t group) {
    check_name(name);
    add_tensor(name, {}, kWeights);
    for (const FlatState& state : save_.optimizers.front().states) {
      check_name(state.name);
      add_tensor(name, state.name, state.name);
    }
    if (Value* const step = find_step(group); step != nullptr && !save_.is_parted()) {
      add_file(path_of(name, kStep), [step](Arena&) { return step; });
    }
  }

  static std::string path_of(std::string_view name, std::string_view file) {
    return fmt::format("{}/{}/{}.pt", kZeroFolder, name, file);
  }

  void add_tensor(std::string_view name, std::string_view state, std::string_view file) {
    const std::uint32_t tensor = reader_.flat_tensor(name_of_state(name, state));
    if (tensor == kNoIndex) return;  // The group was never stepped.
    const bool is_row = save_.is_parted();
    const std::uint32_t stored = target_files_.add_whole(static_cast<std::uint32_t>(files_.size()), tensor, is_row);
    add_file(path_of(name, file), [number = target_files_.number_of(stored), is_row](Arena& arena) -> const Value* {
      Value* const value = make_tensor(arena, number);
      return is_row ? value : make_dict(arena, {{"cat_dim", make_int(arena, 0)}, {"param", value}});
    });
  }

  Value* find_step(std::size_t group) const {
    const Value* const zero = find_key(*save_.optimizers.front().root, "optimizer_state_dict");
    const Value* const base = find_key(*zero, "base_optimizer_state");
    const Value* const state = base == nullptr ? nullptr : find_key(*base, "state");
    const std::span<Value*> items = state == nullptr ? std::span<Value*>() : mapping_items(*state);
    for (std::size_t i = 0; i + 1 < items.size(); i += 2) {
      if (items[i]->number == static_cast<std::int64_t>(group)) return find_key(*items[i + 1], kStep);
    }
    return nullptr;
  }

  const SaveReader& reader_;
  const Save& save_;
  std::int64_t ranks_;
  TreeFiles target_files_;
  std::vector<TreeFile> files_;
  std::shared_ptr<Universal> all_;
  ModelFiles models_;
};

}  // namespace

Remake make_universal(const Source& source, const OpenOptions& open, const RemakeOptions& options) {
  if (options.ranks) {
    throw Error(ErrorCode::kInvalidArgument, "a universal checkpoint holds whole tensors for any number of ranks")
        .found(*options.ranks);
  }
  auto reader = std::make_unique<SaveReader>(source, open, Listing::kWhole);
  UniversalMaker maker(*reader);
  std::unique_ptr<Writer> writer = maker.make();
  return {std::move(reader), maker.take_target(), std::move(writer)};
}

}  // namespace shard::deepspeed
