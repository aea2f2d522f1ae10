#include "formats/deepspeed/pipeline.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "formats/deepspeed/groups.h"
#include "libshard/core/checked.h"
#include "libshard/core/error.h"
#include "libshard/core/findings.h"
#include "libshard/core/hash_table.h"
#include "libshard/core/parse_number.h"
#include "libshard/core/value_walk.h"
#include "libshard/io/paths.h"

namespace shard::deepspeed {

namespace {

/// A number in checkpoint_parallel_dimensions, which DeepSpeed saves since 0.19.
std::optional<std::int64_t> recorded_degree(const Save& save, std::string_view key) {
  const Value* const degrees = find_value(*save.models.front().root, "checkpoint_parallel_dimensions");
  const Value* const degree = degrees != nullptr && is_mapping(*degrees) ? find_value(*degrees, key) : nullptr;
  return degree != nullptr && degree->kind == ValueKind::kInt ? std::optional(degree->number) : std::nullopt;
}

/// The stages of the ranks 0, T, 2T, ... plus one number below T, where T is the number of ranks of a stage.
class Stages {
 public:
  Stages(Catalog& catalog, torch_save::SavedFiles& files, const TagFolder& folder, std::size_t first,
         std::size_t tensor_ranks, std::vector<Save>& saves)
      : catalog_(catalog), files_(files), folder_(folder), first_(first) {
    for (std::size_t rank = first; rank < saves.size(); rank += tensor_ranks) list(saves[rank]);
    const Value* const info = find_value(*saves.front().models.front().root, "universal_checkpoint_info");
    if (info != nullptr && tensor_ranks > 1) list_tied_patterns(*info);
  }

  void read() {
    HashSet<std::int64_t> present;
    const auto rank = static_cast<std::int64_t>(first_);
    for (const PartFile& file : std::ranges::equal_range(folder_.layers, rank, {}, &PartFile::model_rank)) {
      present.insert(file.layer);
      add(file.layer, read_part(catalog_, files_, file.name));
    }
    for (const auto& [layer, name] : layers_.entries()) {
      if (!present.contains(layer)) throw missing(layer, name);
    }
  }

 private:
  struct Stage {
    Save* save;
    HashMap<std::string_view, Dims> params;
  };
  struct Shared {
    std::int64_t layer;
    std::vector<std::byte> front;  ///< Its largest tensor begins with them.
  };

  void list(Save& save) {
    Stage& stage = stages_.emplace_back(Stage{&save, {}});
    if (save.optimizers.empty() && !save.models.front().groups) return;
    const std::vector<ParamGroup> groups = save.optimizers.empty() ? *save.models.front().groups : groups_of(save);
    for (const ParamGroup& group : groups) {
      for (const ParamShape& param : group) {
        stage.params[param.name] = param.shape;
        std::string_view rest = param.name;
        const std::optional<std::int64_t> layer = take_natural(rest);
        if (layer && rest.starts_with('.')) layers_[*layer] = param.name;
        if (!rest.starts_with(kTiedModules)) continue;
        rest.remove_prefix(kTiedModules.size());
        const std::size_t dot = rest.find('.');
        if (dot != std::string_view::npos) keys_[rest.substr(dot + 1)].insert(rest.substr(0, dot));
      }
    }
  }

  /// Lists the parts of patterns after "tied_modules.KEY.", without escapes.
  void list_tied_patterns(const Value& info) {
    ValueWalk walk(info);
    while (const Value* const value = walk.next()) {
      const std::size_t at = value->is_string() ? value->text().find("tied_modules") : std::string_view::npos;
      if (at == std::string_view::npos) continue;
      std::string pattern(value->text().substr(at));
      std::erase(pattern, '\\');
      pattern.erase(0, pattern.find('.') + 1);
      pattern.erase(0, pattern.find('.') + 1);
      tied_patterns_.push_back(std::move(pattern));
    }
  }

  /// Checks that no pattern may be for a tensor of a layer that could be a shared one of unknown key.
  void check_patterns(std::int64_t layer, const ModelStates& part) const {
    for (const auto& [name, view] : part.module.entries()) {
      catalog_.arena->charge(Charge::kVisits, std::ssize(tied_patterns_));
      const bool may_match = std::ranges::any_of(tied_patterns_, [&](const std::string& pattern) {
        return pattern.starts_with(name) || pattern.find('*') != std::string::npos;
      });
      if (!may_match) continue;
      throw Error(ErrorCode::kUnsupported,
                  fmt::format("cannot join the files of layer {} of tensor-parallel ranks", layer))
          .in_file(catalog_.files[part.file].path)
          .because(fmt::format("no optimizer names its tensor '{}', which may be that of a shared layer", name));
    }
  }

  void add(std::int64_t layer, const ModelStates& part) {
    const std::string own = fmt::format("{}.", layer);
    if (add_as(own, part)) return;
    if (const std::optional<std::string> tied = prefix_of_tied(part)) {
      check_shared(layer, *tied, part);
      if (add_as(*tied, part)) return;
    }
    check_patterns(layer, part);
    stages_.front().save->parts.push_back(with_prefix(*catalog_.arena, part, own));
  }

  /// Adds the part to each stage that has a parameter of it. \returns false if none has one.
  bool add_as(const std::string& prefix, const ModelStates& part) {
    bool is_added = false;
    catalog_.arena->charge(Charge::kVisits, std::ssize(stages_) * std::ssize(part.module.entries()));
    for (Stage& stage : stages_) {
      bool has_one = false;
      for (const auto& [name, view] : part.module.entries()) {
        has_one = has_one || stage.params.contains(fmt::format("{}{}", prefix, name));
      }
      if (!has_one) continue;
      ModelStates& added = stage.save->parts.emplace_back(with_prefix(*catalog_.arena, part, prefix));
      if (is_added) added.module_rest = nullptr;  // Objects are listed once.
      is_added = true;
    }
    return is_added;
  }

  /// "tied_modules.KEY." if parameters of exactly one key have the names and shapes of the part's tensors.
  std::optional<std::string> prefix_of_tied(const ModelStates& part) const {
    std::optional<std::string> found;
    for (const auto& [name, view] : part.module.entries()) {
      const HashSet<std::string_view>* const keys = keys_.find(name);
      if (keys == nullptr) continue;
      for (const std::string_view key : keys->keys()) {
        catalog_.arena->charge(Charge::kVisits, std::ssize(stages_));
        const std::string prefix = fmt::format("{}{}.", kTiedModules, key);
        if (!has_shape(prefix + std::string(name), view.shape)) continue;
        if (found && *found != prefix) return std::nullopt;
        found = prefix;
      }
    }
    return found;
  }

  /// Checks that the layers with the names and shapes of a shared one begin with the same values, because a layer that
  /// is not trained may also have these names and shapes.
  void check_shared(std::int64_t layer, const std::string& prefix, const ModelStates& part) {
    constexpr std::int64_t kCompared = 1024;
    const auto stored = [](const auto& each) { return each.value.storage_bytes; };
    const TensorView& view = std::ranges::max_element(part.module.entries(), {}, stored)->value;
    const std::int64_t elements = view.storage_bytes / element_bytes(view.dtype) - view.first;
    const auto front = files_.read_span(part.file, view, std::clamp<std::int64_t>(elements, 0, kCompared));
    const auto [first, is_new] = shared_.try_emplace(prefix, Shared{layer, front});
    if (is_new || first.front == front) return;
    throw Error(ErrorCode::kUnsupported, fmt::format("cannot tell which layers share the weights of '{}'", prefix))
        .in_file(catalog_.files[part.file].path)
        .because(fmt::format("layers {} and {} have its names and shapes, and different values", first.layer, layer));
  }

  bool has_shape(const std::string& name, Dims shape) const {
    return std::ranges::any_of(stages_, [&](const Stage& stage) {
      const Dims* const listed = stage.params.find(name);
      return listed != nullptr && *listed == shape;
    });
  }

  Error missing(std::int64_t layer, std::string_view param) const {
    const bool has_ranks = !folder_.layers.empty() && folder_.layers.front().name.find("-model_") != std::string::npos;
    const std::string rank = has_ranks ? fmt::format("-model_{:02}", first_) : std::string();
    return Error(ErrorCode::kNotFound, fmt::format("the file of layer {} is missing", layer))
        .in_file(join_path(folder_.path, fmt::format("layer_{:02}{}-model_states.pt", layer, rank)))
        .of_kind(FindingKind::kMissingFile)
        .because(fmt::format("the optimizer names '{}'", param));
  }

  Catalog& catalog_;
  torch_save::SavedFiles& files_;
  const TagFolder& folder_;
  std::size_t first_;
  std::vector<Stage> stages_;
  HashMap<std::string, Shared> shared_;                        ///< By prefix: the first layer of a shared one.
  std::vector<std::string> tied_patterns_;                     ///< Rules of tensor-parallel ranks for shared layers.
  HashMap<std::int64_t, std::string_view> layers_;             ///< By number: a parameter of the layer.
  HashMap<std::string_view, HashSet<std::string_view>> keys_;  ///< By name in a shared layer: the layer's key.
};

}  // namespace

std::size_t ranks_of_stage(const Catalog& catalog, const TagFolder& folder, const std::vector<Save>& saves) {
  if (folder.layers.empty() && recorded_degree(saves.front(), "pp_degree").value_or(1) <= 1) return saves.size();
  const std::int64_t by_files = folder.layers.empty() ? 1 : checked_add(folder.layers.back().model_rank, 1);
  const std::int64_t ranks = recorded_degree(saves.front(), "tp_degree").value_or(by_files);
  if (ranks >= by_files && std::ssize(saves) % ranks == 0) return static_cast<std::size_t>(ranks);
  throw Error(ErrorCode::kCorruption, "the stages of the pipeline have different numbers of ranks")
      .in_file(catalog.files[saves.front().models.front().file].path)
      .of_kind(FindingKind::kWorldSizeMismatch)
      .expected(fmt::format("a multiple of {}", ranks))
      .found(std::ssize(saves));
}

void read_layers(Catalog& catalog, torch_save::SavedFiles& files, const TagFolder& folder, std::size_t tensor_ranks,
                 std::vector<Save>& saves) {
  const Value* const module = find_key(*saves.front().models.front().root, "module");
  const bool is_pipeline = module != nullptr && module->kind == ValueKind::kNone;
  if (is_pipeline && folder.layers.empty()) {
    throw Error(ErrorCode::kNotFound, "the files of the pipeline's layers are missing")
        .in_file(folder.path)
        .of_kind(FindingKind::kMissingFile)
        .expected("layer_00-model_states.pt or layer_00-model_00-model_states.pt");
  }
  if (folder.layers.empty()) return;
  for (std::size_t first = 0; first < tensor_ranks; ++first) {
    Stages(catalog, files, folder, first, tensor_ranks, saves).read();
  }
}

}  // namespace shard::deepspeed
