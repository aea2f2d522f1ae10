#include "libshard/export/containers.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <map>

namespace shard::exporting {

namespace {

/// The keys under which trainers store a model, the most certain first. Keys of one model among several (`generator`)
/// and of averages of one (`ema`) are not included.
constexpr std::array<std::string_view, 12> kModels{
    "model",         "state_dict", "model_state_dict", "module", "model_state", "network_weights",
    "model_weights", "net",        "network",          "params", "state",       "app"};
/// The ones among them that may contain other states in addition to the model.
constexpr std::array<std::string_view, 2> kOuter{"state", "app"};
/// The keys inside a different container, in which a model's own modules may have names like the others.
constexpr std::array<std::string_view, 4> kInner{"model", "state_dict", "model_state_dict", "module"};
/// Keys of whole models and of averages of one. Other keys count if the names below them are those of a state_dict.
constexpr std::array<std::string_view, 24> kOtherModels{
    "generator",     "discriminator", "critic",    "actor",     "policy",         "value",          "ref",
    "reward",        "ema",           "ema_model", "model_ema", "ema_state_dict", "state_dict_ema", "params_ema",
    "generator_ema", "teacher",       "student",   "target",    "net_g",          "net_d",          "netG",
    "netD",          "weights",       "best_model"};
/// Keys of states that are not a model's.
constexpr std::array<std::string_view, 24> kOthers{"optimizer",
                                                   "optim",
                                                   "optimizers",
                                                   "optimizer_state",
                                                   "optimizer_states",
                                                   "optimizer_state_dict",
                                                   "optim_state",
                                                   "lr_scheduler",
                                                   "lr_schedulers",
                                                   "scheduler",
                                                   "schedulers",
                                                   "scheduler_state_dict",
                                                   "dataloader",
                                                   "train_state",
                                                   "rng_state",
                                                   "rng_states",
                                                   "rng",
                                                   "rng_tracker",
                                                   "extra_state",
                                                   "loops",
                                                   "callbacks",
                                                   "scaler",
                                                   "grad_scaler",
                                                   "trainer_state"};
/// Words, separated by '_', that identify such a state: optimizer_policy, amp_scaler.
constexpr std::array<std::string_view, 11> kOtherWords{"optimizer", "optimizers", "optim",    "opt",
                                                       "scheduler", "schedulers", "scaler",   "rng",
                                                       "sampler",   "dataloader", "callbacks"};

/// The limit on nested containers that are searched.
constexpr std::size_t kMostDepth = 8;

template <class List>
bool contains(const List& list, std::string_view word) {
  return std::ranges::find(list, word) != list.end();
}

std::string_view first_part(std::string_view name) { return name.substr(0, name.find('.')); }

std::string text_of(const PathPart& part) {
  return part.is_index ? std::to_string(part.index) : std::string(part.key());
}

bool has_other_word(std::string_view key) {
  while (!key.empty()) {
    const std::size_t end = key.find('_');
    if (contains(kOtherWords, key.substr(0, end))) return true;
    key.remove_prefix(end == std::string_view::npos ? key.size() : end + 1);
  }
  return false;
}

/// Whether a container belongs to an optimizer or a similar state.
bool is_other_key(std::string_view key) {
  return contains(kOthers, key) || has_other_word(key) || key.starts_with("optimizer");
}

/// Whether this is Megatron-core's name for the state of one of several optimizers.
bool is_of_chained_optimizer(std::string_view name) {
  return name.starts_with("chained_") && name.substr(first_part(name).size()).starts_with(".optimizer.");
}

/// The tensors below one key.
struct Group {
  PathPart key{};
  std::string text{};
  std::vector<std::uint32_t> tensors{};
  bool is_state_dict = false;  ///< A key below it contains dots, like the names of modules' parameters.
};

/// The tensors at one depth of the tree.
struct Level {
  std::vector<Group> groups{};          ///< Sorted by name.
  std::vector<std::uint32_t> leaves{};  ///< Tensors that are in no container below.
  bool has_dotted_leaves = false;

  const Group* find(std::string_view text) const {
    const auto found = std::ranges::find(groups, text, &Group::text);
    return found == groups.end() ? nullptr : &*found;
  }
};

bool has_dot(const PathPart& part) { return part.key().find('.') != std::string_view::npos; }

Level look_at(const Catalog& source, std::span<const std::uint32_t> tensors, std::size_t depth) {
  Level level;
  std::map<std::string, std::size_t> group_of;
  for (const std::uint32_t index : tensors) {
    const Path& path = source.tensors[index].path;
    if (path.size() <= depth + 1) {
      level.leaves.push_back(index);
      const bool is_dotted =
          path.empty() ? source.tensors[index].name.find('.') != std::string_view::npos : has_dot(path.back());
      level.has_dotted_leaves = level.has_dotted_leaves || is_dotted;
      continue;
    }
    const auto [found, is_new] = group_of.try_emplace(text_of(path[depth]), level.groups.size());
    if (is_new) level.groups.push_back({path[depth], found->first});
    Group& group = level.groups[found->second];
    group.tensors.push_back(index);
    group.is_state_dict = group.is_state_dict || has_dot(path.back());
    for (std::size_t i = depth + 1; !group.is_state_dict && i < std::min(path.size(), kMostDepth); ++i) {
      group.is_state_dict = has_dot(path[i]);
    }
  }
  return level;
}

/// Whether a container at `depth` that may contain other states has a model in it.
bool holds_model(const Catalog& source, const Group& group, std::size_t depth) {
  const Level inner = look_at(source, group.tensors, depth + 1);
  return inner.find("model") != nullptr || inner.has_dotted_leaves;
}

/// The container that is certain to be the model's, or null.
const Group* sure_model(const Catalog& source, const Level& level, std::size_t depth) {
  const std::span<const std::string_view> keys =
      depth == 0 ? std::span<const std::string_view>(kModels) : std::span<const std::string_view>(kInner);
  for (const std::string_view key : keys) {
    const Group* group = level.find(key);
    if (group != nullptr && (!contains(kOuter, key) || holds_model(source, *group, depth))) return group;
  }
  return nullptr;
}

class Search {
 public:
  Search(const Catalog& source, bool takes_several) : source_(source), takes_several_(takes_several) {}

  Containers run(std::span<const std::uint32_t> tensors) {
    std::vector<std::uint32_t> inside(tensors.begin(), tensors.end());
    while (found_.model.size() < kMostDepth && descend(inside)) continue;
    return std::move(found_);
  }

 private:
  std::string name_of(const Group& group) const {
    std::vector<std::string> keys = found_.model;
    keys.push_back(group.text);
    return joined(keys);
  }

  /// Enters the model's container at this depth. \returns false if there is none.
  bool descend(std::vector<std::uint32_t>& inside) {
    const std::size_t depth = found_.model.size();
    const Level level = look_at(source_, inside, depth);
    const Group* chosen = sure_model(source_, level, depth);
    if (chosen == nullptr && !level.has_dotted_leaves) {
      chosen = only_model(level, depth);
      if (chosen != nullptr) add_leaves(level);
    }
    if (chosen == nullptr) return false;
    for (const Group& group : level.groups) {
      if (&group == chosen || is_other_key(group.text)) continue;
      found_.beside.push_back({name_of(group), std::ssize(group.tensors)});
    }
    found_.model.push_back(chosen->text);
    inside = chosen->tensors;
    return true;
  }

  void add_leaves(const Level& level) {
    for (const std::uint32_t leaf : level.leaves) {
      const std::string_view name = source_.tensors[leaf].name;
      if (!is_other_state(name, {})) found_.beside.push_back({std::string(name), 1});
    }
  }

  /// The only container with a model, judged by its content or its key. If there are several, they are choices.
  const Group* only_model(const Level& level, std::size_t depth) {
    std::vector<const Group*> models;
    for (const Group& group : level.groups) {
      const bool is_model = group.is_state_dict || contains(kOtherModels, group.text);
      // Below the model's own container, only a list can be one of several models.
      if (is_model && !is_other_key(group.text) && (depth == 0 || group.key.is_index)) models.push_back(&group);
    }
    if (models.size() == 1) return models.front();
    if (models.size() > 1 && !takes_several_) {
      for (const Group* group : models) found_.choices.push_back(name_of(*group));
    }
    return nullptr;
  }

  const Catalog& source_;
  const bool takes_several_;
  Containers found_;
};

}  // namespace

Containers find_containers(const Catalog& source, std::span<const std::uint32_t> tensors, bool takes_several) {
  return Search(source, takes_several).run(tensors);
}

bool is_inside(const Path& path, std::span<const std::string> container) {
  if (path.size() <= container.size()) return false;
  for (std::size_t i = 0; i < container.size(); ++i) {
    if (text_of(path[i]) != container[i]) return false;
  }
  return true;
}

bool is_other_state(std::string_view name, const Path& path) {
  if (path.size() > 1 && is_other_key(text_of(path[0]))) return true;
  return contains(kOthers, first_part(name)) || is_of_chained_optimizer(name);
}

std::string joined(std::span<const std::string> keys) { return fmt::format("{}", fmt::join(keys, ".")); }

}  // namespace shard::exporting
