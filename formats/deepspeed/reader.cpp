#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "formats/deepspeed/format.h"
#include "formats/deepspeed/join.h"
#include "formats/deepspeed/merge.h"
#include "formats/deepspeed/pipeline.h"
#include "formats/deepspeed/save_reader.h"
#include "formats/deepspeed/tag_folder.h"
#include "formats/torch/saved_files.h"
#include "libshard/core/error.h"
#include "libshard/core/findings.h"
#include "libshard/core/value_equality.h"
#include "libshard/io/paths.h"

namespace shard::deepspeed {

namespace {

// Checks when a save's files are loaded that all ranks of one save are present, once each.

Error missing(const TagFolder& folder, const StateFile& other, std::int64_t rank) {
  Error error(ErrorCode::kNotFound, fmt::format("the file of rank {} is missing", rank));
  error.in_file(join_path(folder.path, name_beside(other, rank))).of_kind(FindingKind::kMissingFile);
  return error.of_rank(static_cast<int>(rank));
}

Error other_world(const Catalog& catalog, std::uint32_t file, std::int64_t expected, std::int64_t found) {
  Error error(ErrorCode::kCorruption, "the save is from a different number of ranks");
  error.in_file(catalog.files[file].path).of_kind(FindingKind::kWorldSizeMismatch);
  return error.expected(expected).found(found);
}

Error mixed(const Catalog& catalog, std::uint32_t file, const std::string& what) {
  Error error(ErrorCode::kCorruption, fmt::format("the files are of different saves: {}", what));
  return error.in_file(catalog.files[file].path).of_kind(FindingKind::kMixedSave);
}

/// Checks that each expert that the model's states count has a file. \throws Error kNotFound
void check_experts(const TagFolder& folder, const ModelStates& model) {
  const Value* const counts = find_value(*model.root, "num_experts");
  if (counts == nullptr || counts->kind != ValueKind::kList) return;
  const auto place = [](const PartFile& file) { return std::pair(file.layer, file.expert); };
  const std::vector<std::int64_t> all = pickle::naturals(*counts, "num_experts");
  for (std::int64_t layer = 0; layer < std::ssize(all); ++layer) {
    for (std::int64_t expert = 0; expert < all[static_cast<std::size_t>(layer)]; ++expert) {
      if (std::ranges::binary_search(folder.experts, std::pair(layer, expert), {}, place)) continue;
      throw Error(ErrorCode::kNotFound, fmt::format("the file of expert {} of MoE layer {} is missing", expert, layer))
          .in_file(join_path(folder.path, fmt::format("layer_{}_expert_{}_mp_rank_{:02}_model_states.pt", layer, expert,
                                                      model.ranks.model_rank)))
          .of_kind(FindingKind::kMissingFile);
    }
  }
}

void check_optimizers(const Catalog& catalog, const TagFolder& folder, const Save& save) {
  const OptimizerStates& first = save.optimizers.front();
  ValueEquality equality({.budget = catalog.arena->budget().get()});
  for (const OptimizerStates& rank : save.optimizers) {
    if (rank.data_ranks != first.data_ranks) throw other_world(catalog, rank.file, first.data_ranks, rank.data_ranks);
    if (rank.sharing != first.sharing) throw mixed(catalog, rank.file, "their partition counts differ");
    if (rank.stage != first.stage) throw mixed(catalog, rank.file, "their ZeRO stages differ");
    for (const FlatState& state : rank.states) {
      if (std::ranges::find(first.states, state.name, &FlatState::name) != first.states.end()) continue;
      throw mixed(catalog, rank.file, fmt::format("it has the state '{}', which rank 0 lacks", state.name));
    }
    for (const auto& [group, step] : rank.steps.entries()) {
      Value* const* const other = first.steps.find(group);
      if (other != nullptr && !equality.is_equal(**other, *step)) {
        throw mixed(catalog, rank.file, fmt::format("the optimizer's steps of group {} differ", group));
      }
    }
  }
  const std::int64_t found = std::ssize(save.optimizers);
  if (found < first.data_ranks) throw missing(folder, folder.optimizers.front(), found);
  if (found > first.data_ranks) {
    throw other_world(catalog, save.optimizers[static_cast<std::size_t>(first.data_ranks)].file, first.data_ranks,
                      found);
  }
}

/// Refuses groups on different numbers of ranks, which only experts of stages 1 and 2 may have.
void refuse_teams(const Catalog& catalog, const Save& save) {
  for (const OptimizerStates& rank : save.optimizers) {
    if (rank.sharing.empty() || std::ranges::min(rank.sharing) == rank.data_ranks) continue;
    throw Error(ErrorCode::kUnsupported, "cannot read an optimizer whose groups are spread over different ranks")
        .in_file(catalog.files[rank.file].path)
        .because("the save has no experts of DeepSpeed's MoE with stage 1 or 2")
        .suggest(Remedy::kReadCopies);
  }
}

void check_step(const Catalog& catalog, ValueEquality& equality, const ModelStates& first, const ModelStates& model) {
  const Value *const step = find_key(*first.root, "global_steps"), *const other = find_key(*model.root, "global_steps");
  if (step == nullptr || other == nullptr || equality.is_equal(*step, *other)) return;
  throw mixed(catalog, model.file, "their steps differ");
}

void check_models(const Catalog& catalog, const TagFolder& folder, const Save& save, std::int64_t ranks) {
  const ModelStates& first = save.models.front();
  ValueEquality equality({.budget = catalog.arena->budget().get()});
  if (first.is_mics && first.data_ranks > ranks && ranks > 0) {
    throw Error(ErrorCode::kUnsupported, "cannot read a DeepSpeed MiCS checkpoint: only one group of ranks has files")
        .in_file(catalog.files[first.file].path)
        .because(fmt::format("the group has {} of {} ranks", ranks, first.data_ranks));
  }
  for (const ModelStates& model : save.models) {
    if (model.data_ranks != 0 && model.data_ranks != ranks) {
      throw other_world(catalog, model.file, ranks, model.data_ranks);
    }
    check_step(catalog, equality, first, model);
  }
  const bool has_one_of_all = !folder.models.empty() || folder.sharded_models.empty();
  if (has_one_of_all || (ranks == 0 && save.models.size() == 1)) return;
  const std::int64_t found = std::ssize(save.models);
  if (found < ranks) throw missing(folder, folder.sharded_models.front(), found);
  if (found > ranks) throw other_world(catalog, save.models[static_cast<std::size_t>(ranks)].file, ranks, found);
}

/// Checks by their names that `files` are those of ranks 0, 1, ..., each once.
/// \throws Error kNotFound     a rank before the last one is missing (kind missing_file); with the name of its file.
/// \throws Error kCorruption   a rank has two files (kind extra_file).
/// \pre they are of one model-parallel rank
void check_names(const TagFolder& folder, const std::vector<StateFile>& files) {
  std::int64_t next = 0;
  for (const StateFile& file : files) {
    if (file.data_rank < next) {
      throw Error(ErrorCode::kCorruption, fmt::format("there are two files of rank {}", file.data_rank))
          .in_file(join_path(folder.path, file.name))
          .of_kind(FindingKind::kExtraFile);
    }
    if (file.data_rank > next) throw missing(folder, file, next);
    ++next;
  }
}

/// Checks that the files agree on the number of ranks, the stage and the steps. \pre names were checked
/// \returns the number of data-parallel ranks; 0 if it is unknown.
/// \throws Error kNotFound    files of the last ranks are missing, or all of the optimizer's.
/// \throws Error kCorruption  kinds world_size_mismatch, mixed_save.
std::int64_t check_save(const Catalog& catalog, const TagFolder& folder, const Save& save, bool from_module,
                        std::optional<std::int64_t> ranks_expected) {
  const ModelStates& model = save.models.front();
  std::int64_t ranks = model.data_ranks;
  if (!save.optimizers.empty()) {
    ranks = save.optimizers.front().data_ranks;
    check_optimizers(catalog, folder, save);
  } else if (model.stage > 0 && !(from_module && model.stage < 3)) {
    throw Error(ErrorCode::kNotFound, "the files of optimizer states, which contain the weights, are missing")
        .in_file(folder.path)
        .of_kind(FindingKind::kMissingFile)
        .expected(fmt::format("{} files like zero_pp_rank_0_mp_rank_00_optim_states.pt", ranks))
        .suggest(Remedy::kReadCopies);
  }
  check_models(catalog, folder, save, ranks);
  if (ranks_expected && ranks != 0 && *ranks_expected != ranks) {
    throw other_world(catalog, model.file, *ranks_expected, ranks);
  }
  return ranks;
}

/// Checks that the saves of model-parallel ranks form one save. All exist, with the same step and number of
/// data-parallel ranks. \throws Error kNotFound, kCorruption
void check_model_ranks(const Catalog& catalog, const TagFolder& folder, const std::vector<Save>& saves) {
  const ModelStates& first = saves.front().models.front();
  const Value* const count = find_key(*first.root, "mp_world_size");
  if (count != nullptr && count->kind == ValueKind::kInt && count->number > std::ssize(saves)) {
    throw Error(ErrorCode::kNotFound, fmt::format("the files of model-parallel rank {} are missing", saves.size()))
        .in_file(folder.path)
        .of_kind(FindingKind::kMissingFile)
        .expected(count->number)
        .found(std::ssize(saves));
  }
  ValueEquality equality({.budget = catalog.arena->budget().get()});
  for (const Save& save : saves) {
    const ModelStates& model = save.models.front();
    if (save.optimizers.size() != saves.front().optimizers.size()) {
      throw other_world(catalog, model.file, std::ssize(saves.front().optimizers), std::ssize(save.optimizers));
    }
    check_step(catalog, equality, first, model);
  }
}

/// The files of a save are torch.save files, but only DeepSpeed's own formats can join them.
constexpr std::array<std::string_view, 2> kSupersedes{"torch", "torch-ranks"};
constexpr std::array<std::string_view, 2> kWeights{"masters", "16bit"};
constexpr std::array kReadOptions{
    FormatOption{"weights", kWeights, "DeepSpeed parameters to read: masters (default) or 16bit (the module's copies)",
                 "DeepSpeed checkpoints", "checkpoints of other formats have one copy of each parameter"}};

}  // namespace

SaveReader::SaveReader(const Source& source, const OpenOptions& options, Listing listing)
    : SaveReader(source, options, listing, find_tag_folder(source)) {}

SaveReader::SaveReader(const Source& source, const OpenOptions& options, Listing listing, TagFolder folder)
    : SavedReader(*source.store, {folder.path, options.opaque_globals}), folder_(std::move(folder)) {
  catalog_.format = "deepspeed";
  std::int64_t last = 0;
  for (const auto* files : {&folder_.models, &folder_.sharded_models, &folder_.optimizers}) {
    if (!files->empty()) last = std::max(last, files->back().model_rank);
  }
  if (!folder_.experts.empty()) last = std::max(last, folder_.experts.back().model_rank);
  for (std::int64_t rank = 0; rank <= last; ++rank) {
    read_save(folders_.emplace_back(of_model_rank(folder_, rank)), options);
  }
  check_model_ranks(catalog_, folder_, saves_);
  tensor_ranks_ = ranks_of_stage(catalog_, folder_, saves_);
  read_layers(catalog_, files_, folder_, tensor_ranks_, saves_);
  describe(catalog_.world_size.value_or(0));
  const bool from_module = wants_module(options);
  if (listing == Listing::kNamed) {
    merge(catalog_, files_, saves_, tensor_ranks_, from_module);
  } else {
    refuse_parts();
    const Save& first = saves_.front();
    const bool has_parts = last > 0 || holds_rules(first.models.front());
    flat_ = merge_whole(catalog_, files_, saves_, listing == Listing::kJoined && has_parts && !first.is_parted());
  }
  if (const auto exchanged = exchanged_files(); !exchanged.empty()) throw Error(exchanged.front().error);
  look_for_copies(*options.findings);
  validate_catalog(catalog_, *options.findings, options.threads);
}

void SaveReader::read_save(const TagFolder& folder, const OpenOptions& options) {
  const std::vector<StateFile>& models = folder.models.empty() ? folder.sharded_models : folder.models;
  if (models.empty()) {
    throw Error(ErrorCode::kNotFound, "the file of the model's states is missing")
        .in_file(folder.path)
        .of_kind(FindingKind::kMissingFile)
        .expected(fmt::format("mp_rank_{:02}_model_states.pt", saves_.size()));
  }
  check_names(folder, models);
  check_names(folder, folder.optimizers);
  check_names(folder, folder.expert_optimizers);
  Save& save = saves_.emplace_back();
  for (const StateFile& file : models) save.models.push_back(read_model_states(catalog_, files_, file));
  read_optimizers(folder, options, save);
  read_experts(folder, options, save);
  const std::int64_t ranks = check_save(catalog_, folder, save, wants_module(options), options.ranks_expected);
  if (ranks > 0) catalog_.world_size = ranks;
}

void SaveReader::read_optimizers(const TagFolder& folder, const OpenOptions& options, Save& save) {
  try {
    for (const StateFile& file : folder.optimizers) {
      save.optimizers.push_back(read_optimizer_states(catalog_, files_, file));
    }
    if (folder.experts.empty() || save.is_parted()) refuse_teams(catalog_, save);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kUnsupported) throw;
    skip_optimizers(error, options, save);
  }
}

/// Drops the optimizer's states if only the module's weights are read. \throws Error  the given one, otherwise
void SaveReader::skip_optimizers(const Error& error, const OpenOptions& options, Save& save) {
  if (!wants_module(options)) throw error;
  save.optimizers.clear();
  catalog_.warnings.push_back(fmt::format("the optimizer's states are skipped: {}", error.what()));
}

void SaveReader::read_experts(const TagFolder& folder, const OpenOptions& options, Save& save) {
  const ModelStates& model = save.models.front();
  if (find_value(*model.root, "ds_autoep_layers") != nullptr) {
    Error error(ErrorCode::kUnsupported, "cannot read the weights of AutoEP layers in DeepSpeed's optimizer");
    error.in_file(catalog_.files[model.file].path);
    if (model.stage == 3) throw error;
    skip_optimizers(error.suggest(Remedy::kReadCopies), options, save);
  }
  const bool has_names = model.groups || save.optimizers.empty() || save.optimizers.front().groups;
  if (!folder.experts.empty() && !has_names) {
    Error error(ErrorCode::kUnsupported, "cannot read an optimizer of experts without the names of its parameters");
    error.in_file(catalog_.files[model.file].path)
        .because("older versions of DeepSpeed do not save param_shapes with experts");
    skip_optimizers(error.suggest(Remedy::kReadCopies), options, save);
  }
  check_experts(folder, model);
  for (const PartFile& file : folder.experts) save.parts.push_back(read_part(catalog_, files_, file.name));
  for (const StateFile& file : folder.expert_optimizers) {
    save.rank_optimizers.push_back(read_rank_optimizer(catalog_, files_, file));
  }
  // Their partition_count has the number of all ranks only if other parameters are also trained.
  if (folder.experts.empty() || model.data_ranks == 0) return;
  for (OptimizerStates& optimizer : save.optimizers) optimizer.data_ranks = model.data_ranks;
}

void SaveReader::refuse_parts() const {
  const auto with_parts = std::ranges::find_if(saves_, [](const Save& save) { return !save.parts.empty(); });
  if (with_parts == saves_.end()) return;
  throw Error(ErrorCode::kUnsupported, "cannot write a DeepSpeed save with experts or the layers of a pipeline")
      .in_file(catalog_.files[with_parts->parts.front().file].path);
}

std::string SaveReader::tag() const {
  const std::string name = base_name(folder_.path);
  if (!name.empty() && name != "." && name != ".." && name != "/") return name;
  const Value* const steps = find_key(*saves_.front().models.front().root, "global_steps");
  return fmt::format("global_step{}", steps != nullptr && steps->kind == ValueKind::kInt ? steps->number : 0);
}

std::vector<WholeSave> SaveReader::wholes() const {
  std::vector<WholeSave> all;
  const int count = static_cast<int>(saves_.size());
  for (std::size_t rank = 0; rank < saves_.size(); ++rank) {
    const FlatTensors& flat = flat_[std::min(rank, flat_.size() - 1)];
    all.push_back({catalog_, folders_[rank], saves_[rank], flat, static_cast<int>(rank), count});
  }
  return all;
}

std::uint32_t WholeSave::flat_tensor(std::string_view name) const {
  const Value* const* const found = flat.find(name);
  return found == nullptr ? kNoIndex : static_cast<std::uint32_t>((*found)->number);
}

void SaveReader::describe(std::int64_t ranks) {
  const std::int64_t model_ranks = std::ssize(saves_);
  const auto number = [&](const StateFile& file) {
    return static_cast<int>(file.data_rank * model_ranks + file.model_rank);
  };
  for (const Save& save : saves_) {
    for (const ModelStates& model : save.models) catalog_.files[model.file].rank = number(model.ranks);
    for (const OptimizerStates& rank : save.optimizers) catalog_.files[rank.file].rank = number(rank.ranks);
  }
  const ModelStates& model = saves_.front().models.front();
  if (ranks > 0) catalog_.world_size = ranks * model_ranks;
  if (const Value* version = find_key(*model.root, "ds_version"); version != nullptr && version->is_string()) {
    catalog_.format_version = version->text();
  }
  if (saves_.front().optimizers.empty() && model.stage <= 0) {
    catalog_.warnings.emplace_back("read the module's weights: without ZeRO, the master weights have no names");
  }
}

bool wants_module(const OpenOptions& options) {
  return choice(options.choices, kReadOptions.front()) == kWeights.back();
}

bool detect(const Source& source) {
  const SourceStore& store = *source.store;
  if (source.paths.size() != 1 || !is_tag_folder(store, source.paths.front())) return false;
  // A universal checkpoint also contains files of the model's states.
  return !holds_universal(store, source.paths.front());
}

std::unique_ptr<Reader> open(const Source& source, const OpenOptions& options) {
  return std::make_unique<SaveReader>(source, options, Listing::kNamed);
}

}  // namespace shard::deepspeed

const shard::Format shard::kDeepSpeedFormat{
    .traits = {.name = "deepspeed", .pieces = true, .objects = true, .many_files = false},
    .suffixes = {},
    .supersedes = deepspeed::kSupersedes,
    .ranks_may_differ = true,
    .read_options = deepspeed::kReadOptions,
    .detect = deepspeed::detect,
    .open = deepspeed::open,
    .make_writer = nullptr,
    .rewrite = deepspeed::repartition,
    .rewrites = "deepspeed",
};

const shard::Format shard::kDeepSpeedUniversalFormat{
    .traits = {.name = "deepspeed-universal", .objects = true, .many_files = false},
    .suffixes = {},
    .supersedes = deepspeed::kSupersedes,
    .read_options = deepspeed::kReadOptions,
    .detect = deepspeed::detect_universal,
    .open = deepspeed::open_universal,
    .make_writer = nullptr,
    .rewrite = deepspeed::make_universal,
    .rewrites = "deepspeed",
};
