#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "formats/deepspeed/format.h"
#include "formats/deepspeed/join.h"
#include "formats/deepspeed/merge.h"
#include "formats/deepspeed/model_files.h"
#include "formats/deepspeed/states.h"
#include "formats/deepspeed/tag_folder.h"
#include "formats/torch/saved_reader.h"
#include "libshard/core/box.h"
#include "libshard/core/checked.h"
#include "libshard/core/error.h"
#include "libshard/core/hash_table.h"
#include "libshard/core/short_text.h"
#include "libshard/io/paths.h"

namespace shard::deepspeed {

namespace {

constexpr std::string_view kInfo = "universal_checkpoint_info", kVocabularyPatterns = "vocabulary_parameter_patterns";

class UniversalReader final : public torch_save::SavedReader {
 public:
  UniversalReader(const Source& source, const OpenOptions& options)
      : UniversalReader(source, options, find_universal_folder(source)) {}

 private:
  UniversalReader(const Source& source, const OpenOptions& options, UniversalFolder folder)
      : SavedReader(*source.store, {folder.path, options.opaque_globals}), folder_(std::move(folder)) {
    catalog_.format = "deepspeed-universal";
    Save save;
    for (const StateFile& file : folder_.models) {
      ModelStates states = read_model_states(catalog_, files_, file);
      note_trained(states);
      if (file.model_rank == 0) save.models.push_back(std::move(states));
    }
    if (save.models.empty()) throw missing_first();
    if (folder_.has_layers) skip_layers(wants_module(options));
    note_copies(save.models.front());
    read_files(save.universal.emplace());
    if (!wants_module(options)) check_params(*options.findings);
    check_models(save, *options.findings);
    check_states(*options.findings);
    if (!save.is_parted()) check_shapes(save, *options.findings);
    if (save.universal->is_joined) check_module(save, wants_module(options));
    if (const Value* version = find_key(*save.models.front().root, "ds_version")) {
      if (version->is_string()) catalog_.format_version = version->text();
    }
    merge(catalog_, files_, std::span(&save, 1), 1, wants_module(options));
    validate_catalog(catalog_, *options.findings, options.threads);
  }

  void skip_layers(bool wants_module) {
    if (wants_module) {
      throw Error(ErrorCode::kUnsupported, "cannot read the 16-bit weights of a pipeline's universal checkpoint")
          .in_file(folder_.path);
    }
    catalog_.warnings.emplace_back(
        "files of the pipeline's layers are skipped, with buffers and frozen parameters that only they contain");
  }

  Error missing_first() const {
    return Error(ErrorCode::kNotFound, "the model's states of model-parallel rank 0 are missing")
        .in_file(folder_.path)
        .of_kind(FindingKind::kMissingFile);
  }

  /// Checks that all data are whole. Parameters are; of data in modules only, rank 0's buffers count for all ranks.
  void check_module(const Save& save, bool wants_module) {
    const ModelStates& model = save.models.front();
    const auto refuse = [&](std::string_view what) {
      return Error(ErrorCode::kUnsupported, fmt::format("cannot read {} of several model-parallel ranks", what))
          .in_file(catalog_.files[model.file].path);
    };
    if (wants_module) throw refuse("the 16-bit weights");
    HashSet<std::string_view> known;
    for (const UniversalFile& file : save.universal->files) known.insert(file.param);
    for (const auto& [name, view] : model.module.entries()) {
      if (known.contains(name) || model.buffers.contains(name) || model.shared.contains(name)) continue;
      throw refuse("frozen parameters").of_tensor(name);
    }
    catalog_.warnings.emplace_back("buffers and objects are those of model-parallel rank 0");
  }

  void read_files(UniversalStates& states) {
    states.is_parted = folder_.are_models_of_ranks;
    states.is_joined = folder_.models.back().model_rank > 0;
    read_universal_states(catalog_, files_, fmt::format("{}/{}", kZeroFolder, kOptimizerFile), states);
    for (const UniversalFolder::Param& param : folder_.params) {
      const std::string_view name = catalog_.arena->copy(param.name);
      for (const std::string& file : param.files) {
        const UniversalFile read =
            read_universal_file(catalog_, files_, fmt::format("{}/{}/{}.pt", kZeroFolder, param.name, file), name,
                                catalog_.arena->copy(file));
        if (!copies_.contains(param.name)) states.files.push_back(read);
      }
    }
    std::erase_if(folder_.params, [&](const auto& param) { return copies_.contains(param.name); });
  }

  /// Notes the folders that only repeat the module. DeepSpeed 0.19 writes one in float32 for each buffer, frozen
  /// parameter and further name of a tied one; their values and dtypes are those of the module.
  void note_copies(const ModelStates& model) {
    if (!model.groups || folder_.are_models_of_ranks) return;
    for (const UniversalFolder::Param& param : folder_.params) {
      const bool has_weight_only = param.files.size() == 1 && param.files.front() == kWeightFile;
      const bool is_in_module = model.module.contains(param.name) || model.shared.contains(param.name);
      if (has_weight_only && is_in_module && !trained_.contains(param.name)) {
        copies_.insert(catalog_.arena->copy(param.name));
      }
    }
  }

  /// Notes the parameters that the optimizer updates. Those without elements may have no folder.
  void note_trained(const ModelStates& states) {
    if (!states.groups) return;
    for (const ParamGroup& group : *states.groups) {
      for (const ParamShape& param : group) {
        if (!is_empty(param.shape)) trained_.insert(param.name);
      }
    }
  }

  /// Checks that each of them has a folder. Otherwise its value would be the module's copy, of 16 bits.
  void check_params(Findings& findings) {
    HashSet<std::string_view> present;
    for (const UniversalFolder::Param& param : folder_.params) present.insert(param.name);
    for (const std::string_view name : trained_.keys()) {
      if (present.contains(name)) continue;
      findings.report(Error(ErrorCode::kNotFound, "the folder of a parameter is missing")
                          .in_file(fmt::format("{}/{}", kZeroFolder, name))
                          .of_tensor(name)
                          .of_kind(FindingKind::kMissingFile)
                          .because("param_shapes in the model's states lists the parameter"));
    }
  }

  /// Checks that each rank of stage 3 has a file, which DeepSpeed's engine requires. The weights are in none of them.
  void check_models(const Save& save, Findings& findings) {
    const std::int64_t ranks = save.models.front().data_ranks, found = std::ssize(save.models);
    if (!folder_.are_models_of_ranks || found >= ranks) return;
    std::int64_t missing = 0;
    while (missing < found && save.models[static_cast<std::size_t>(missing)].ranks.data_rank == missing) ++missing;
    const std::string name = name_beside(save.models.front().ranks, missing);
    catalog_.warnings.push_back(
        fmt::format("files of the model's states of {} are missing: {}", plural(ranks - found, "rank"), name));
    findings.tolerate(Error(ErrorCode::kNotFound, fmt::format("the file of rank {} is missing", missing))
                          .in_file(name)
                          .of_kind(FindingKind::kMissingFile)
                          .expected(ranks)
                          .found(found));
  }

  /// Checks the files of the parameters. Most have the same set. A parameter with a part of the most frequent set has
  /// lost files; other sets belong to other optimizers.
  void check_states(Findings& findings) {
    std::map<std::vector<std::string>, std::size_t> counts;
    for (const UniversalFolder::Param& param : folder_.params) ++counts[param.files];
    if (counts.size() < 2) return;
    const auto& usual = std::ranges::max_element(counts, {}, [](const auto& each) { return each.second; })->first;
    FirstNames incomplete;
    for (const UniversalFolder::Param& param : folder_.params) {
      if (param.files == usual || !std::ranges::includes(usual, param.files)) continue;
      incomplete.add(param.name);
      std::vector<std::string> missing;
      std::ranges::set_difference(usual, param.files, std::back_inserter(missing));
      findings.tolerate(Error(ErrorCode::kNotFound, "a state is missing that most parameters have")
                            .in_file(fmt::format("{}/{}/{}.pt", kZeroFolder, param.name, missing.front()))
                            .of_tensor(catalog_.arena->copy(param.name))
                            .of_kind(FindingKind::kMissingFile));
    }
    if (incomplete.count() == 0) return;
    catalog_.warnings.push_back(
        fmt::format("parameters lack files of states that most parameters have: {}", incomplete.text()));
  }

  /// Checks that the tensors of a parameter have its shape, or are flat.
  void check_shapes(const Save& save, Findings& findings) const {
    const HashMap<std::string_view, Dims> shapes = whole_shapes(save);
    for (const UniversalFile& file : save.universal->files) {
      const Dims* const shape = shapes.find(file.param);
      if (shape == nullptr || !file.view || file.number != nullptr || file.view->shape == *shape) continue;
      const Dims& found = file.view->shape;
      if ((found.size() == 1 || shape->size() == 1) && checked_numel(found) == checked_numel(*shape)) continue;
      findings.report(Error(ErrorCode::kCorruption, "the tensor does not have the shape of its parameter")
                          .in_file(catalog_.files[file.file].path)
                          .of_tensor(file.param)
                          .of_kind(FindingKind::kShapeMismatch)
                          .expected(to_string(*shape))
                          .found(to_string(found)));
    }
  }

  /// The shapes of parameters: those of the model's states, unless these list parts or padded rows, or else those of
  /// the weights.
  static HashMap<std::string_view, Dims> whole_shapes(const Save& save) {
    HashMap<std::string_view, Dims> shapes;
    const ModelStates& model = save.models.front();
    const Value* const info = find_key(*model.root, kInfo);
    const bool is_padded = info != nullptr && is_mapping(*info) && find_key(*info, kVocabularyPatterns) != nullptr;
    if (model.groups && !save.universal->is_joined && !is_padded) {
      for (const ParamGroup& group : *model.groups) {
        for (const ParamShape& param : group) shapes.try_emplace(param.name, param.shape);
      }
    }
    for (const UniversalFile& file : save.universal->files) {
      if (file.name == kWeightFile && file.view) shapes.try_emplace(file.param, file.view->shape);
    }
    return shapes;
  }

  UniversalFolder folder_;
  HashSet<std::string_view> trained_;  ///< Names from param_shapes, of all ranks.
  HashSet<std::string_view> copies_;   ///< See note_copies.
};

constexpr double kVersion = 0.2;  ///< The version of plain data parallelism's form, unchanged since DeepSpeed 0.11.2.

Value* make_dict(Arena& arena, std::initializer_list<std::pair<std::string_view, Value*>> entries) {
  std::vector<Value*> items;
  for (const auto& [key, value] : entries) items.insert(items.end(), {make_string(arena, key), value});
  return make_list(arena, ValueKind::kDict, items);
}

/// A copy of a dict without these keys and with one more entry, unless it already has that.
Value* without(Arena& arena, const Value& mapping, std::span<const std::string_view> keys, std::string_view added,
               Value* value) {
  std::vector<Value*> items;
  for (const auto [key, item] : ItemPairs(mapping)) {
    if (std::ranges::find(keys, text_or_empty(*key)) == keys.end()) items.insert(items.end(), {key, item});
  }
  if (!added.empty() && find_key(mapping, added) == nullptr) {
    items.insert(items.end(), {make_string(arena, added), value});
  }
  return make_list(arena, ValueKind::kDict, items);
}

/// The data for the trees of a model-parallel rank's files, which share it.
struct Universal {
  WholeSave whole;
  NewGroups groups;
  std::vector<RankParts> parts;

  NewSpread spread() const { return {whole.save, groups, std::ssize(parts)}; }
};

/// The model's states of a rank, with the entries that the engine requires and that trainers do not write.
const Value* universal_model_tree(Arena& arena, const Universal& all, std::size_t rank) {
  const Value* const tree = model_tree(arena, all.spread(), all.parts[rank]);
  if (all.whole.save.is_parted()) return tree;
  return without(arena, *tree, {}, kInfo,
                 make_dict(arena, {{"universal_checkpoint_version", make_float(arena, kVersion)}}));
}

/// The states of a group, without those in each parameter's folder.
Value* common_states(Arena& arena, const Value& states, const OptimizerStates& optimizer) {
  std::vector<std::string_view> names;
  for (const FlatState& state : optimizer.states) names.push_back(state.name);
  return without(arena, states, names, {}, nullptr);
}

/// The optimizer's values for all parameters.
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
    for (const auto [number, each] : ItemPairs(*state)) {
      states.insert(states.end(), {number, common_states(arena, *each, optimizer)});
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

/// The entries by which the engine shards a parameter for its tensor-parallel ranks.
Value* cut_tree(Arena& arena, const JoinRule& rule, Value* tensor) {
  std::vector<Value*> items;
  const auto add = [&](std::string_view key, Value* value) {
    items.insert(items.end(), {make_string(arena, key), value});
  };
  if (rule.sub_params != nullptr) {
    Value* const arguments[] = {&need_value(*rule.sub_params, "patterns"), &need_value(*rule.sub_params, "shape"),
                                &need_value(*rule.sub_params, "partition_dim")};
    Value* const type = make_global(arena, "deepspeed.checkpoint.universal_checkpoint", "SubparamShape");
    add("sub_param_shape", make_call(arena, type, arguments));
  } else if (rule.kind == JoinRule::Kind::kConcat) {
    add("cat_dim", make_int(arena, rule.dim));
    if (rule.is_halved) add("param_n_sub_params", make_int(arena, 2));
  }
  if (rule.rows) add("vocab_tensor", make_bool(arena, true));
  add("param", tensor);
  return make_list(arena, ValueKind::kDict, items);
}

class UniversalMaker {
 public:
  explicit UniversalMaker(const SaveReader& reader)
      : reader_(reader), wholes_(reader.wholes()), target_files_(reader.catalog(), "deepspeed-universal") {
    check();
    const ModelStates& model = first().save.models.front();
    if (holds_rules(model)) rules_.emplace(*find_key(*model.root, kInfo));
  }

  std::unique_ptr<Writer> make() {
    for (const WholeSave& whole : wholes_) add_models(whole);
    add_file(join_path(kZeroFolder, kOptimizerFile),
             [save = &first().save](Arena& arena) { return common_tree(arena, save->optimizers.front()); });
    const std::vector<ParamGroup> groups = groups_of(first().save);
    const HashMap<std::int64_t, Value*> steps = find_steps();
    for (std::size_t g = 0; g < groups.size(); ++g) {
      Value* const* const step = steps.find(static_cast<std::int64_t>(g));
      for (const ParamShape& param : groups[g]) add_parameter(param.name, step != nullptr ? *step : nullptr);
    }
    return target_files_.finish(std::move(files_), {{std::string(kLatestUniversal), reader_.tag()}});
  }

  Catalog take_target() { return std::move(target_files_.target); }

 private:
  const WholeSave& first() const { return wholes_.front(); }

  void check() const {
    const auto refuse = [](const std::string& why) {
      throw Error(ErrorCode::kUnsupported, "cannot write the save as a universal checkpoint").because(why);
    };
    if (first().save.optimizers.empty()) refuse("it has no files of ZeRO's optimizer states");
    const OptimizerStates& optimizer = first().save.optimizers.front();
    if (wholes_.size() > 1 && optimizer.is_parted()) refuse("it is of stage 3 and several model-parallel ranks");
    const Value* const zero = find_key(*optimizer.root, "optimizer_state_dict");
    const Value* const base = find_key(*zero, optimizer.is_parted() ? "optimizer_state_dict" : "base_optimizer_state");
    if (base == nullptr || !is_mapping(*base) || find_key(*base, "param_groups") == nullptr) {
      refuse("its optimizer's states are not in torch's form, with param_groups");
    }
  }

  void add_models(const WholeSave& whole) {
    const std::int64_t ranks = std::ssize(whole.save.optimizers);
    auto all = std::make_shared<Universal>(Universal{whole, regroup(whole.save, groups_of(whole.save), ranks), {}});
    all->parts.resize(static_cast<std::size_t>(ranks));
    for (std::size_t rank = 0; rank < all->parts.size(); ++rank) {
      all->parts[rank].rank = static_cast<std::int64_t>(rank);
    }
    const ModelFiles models(whole, ranks, static_cast<std::uint32_t>(files_.size()));
    models.add_frozen(target_files_, all->parts);
    for (std::size_t rank = 0; rank < models.count(); ++rank) {
      add_file(models.name(rank), [all, rank](Arena& arena) { return universal_model_tree(arena, *all, rank); });
    }
  }

  void add_file(const std::string& path, std::function<const Value*(Arena& arena)> tree) {
    files_.push_back({join_path(reader_.tag(), path), -1, std::move(tree)});
  }

  /// \param step  of its group; may be null
  void add_parameter(std::string_view name, Value* step) {
    check_name(name);
    const JoinRule rule = rules_ ? rules_->rule_for(name) : JoinRule();
    add_tensor(name, {}, kWeightFile, rule);
    for (const FlatState& state : first().save.optimizers.front().states) {
      check_name(state.name);
      add_tensor(name, state.name, state.name, rule);
    }
    if (step != nullptr) add_file(path_of(name, kStepFile), [step](Arena&) { return step; });
  }

  static std::string path_of(std::string_view name, std::string_view file) {
    return fmt::format("{}/{}/{}.pt", kZeroFolder, name, file);
  }

  void add_tensor(std::string_view name, std::string_view state, std::string_view file, const JoinRule& rule) {
    const std::uint32_t tensor = first().flat_tensor(name_of_state(name, state));
    if (tensor == kNoIndex) return;  // The group has had no update.
    const bool is_row = first().save.is_parted();
    const std::uint32_t stored = target_files_.add_whole(static_cast<std::uint32_t>(files_.size()), tensor, is_row);
    add_file(path_of(name, file),
             [number = target_files_.number_of(stored), is_row, rule](Arena& arena) -> const Value* {
               Value* const value = make_tensor(arena, number);
               return is_row ? value : cut_tree(arena, rule, value);
             });
  }

  /// The steps of the groups that have one, by their numbers. None for stage 3.
  HashMap<std::int64_t, Value*> find_steps() const {
    HashMap<std::int64_t, Value*> steps;
    if (first().save.is_parted()) return steps;
    const Value* const zero = find_key(*first().save.optimizers.front().root, "optimizer_state_dict");
    const Value* const base = find_key(*zero, "base_optimizer_state");
    const Value* const state = base == nullptr ? nullptr : find_key(*base, "state");
    for (const auto [number, each] : ItemPairs(state == nullptr ? std::span<Value*>() : mapping_items(*state))) {
      Value* const step = find_key(*each, kStepFile);
      if (number->kind == ValueKind::kInt && step != nullptr) steps.try_emplace(number->number, step);
    }
    return steps;
  }

  const SaveReader& reader_;
  std::vector<WholeSave> wholes_;   ///< By model-parallel rank.
  std::optional<JoinRules> rules_;  ///< The rules of the first rank.
  TreeFiles target_files_;
  std::vector<TreeFile> files_;
};

}  // namespace

bool detect_universal(const Source& source) {
  return source.paths.size() == 1 && is_universal_folder(*source.store, source.paths.front());
}

std::unique_ptr<Reader> open_universal(const Source& source, const OpenOptions& options) {
  return std::make_unique<UniversalReader>(source, options);
}

Rewrite make_universal(const Source& source, const OpenOptions& open, const RewriteOptions& options) {
  if (options.ranks) {
    throw Error(ErrorCode::kInvalidArgument, "a universal checkpoint contains whole tensors for any number of ranks")
        .found(*options.ranks);
  }
  auto reader = std::make_unique<SaveReader>(source, open, Listing::kJoined);
  UniversalMaker maker(*reader);
  std::unique_ptr<Writer> writer = maker.make();
  return {std::move(reader), maker.take_target(), std::move(writer)};
}

}  // namespace shard::deepspeed
