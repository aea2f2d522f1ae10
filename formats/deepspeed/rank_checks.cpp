#include "formats/deepspeed/rank_checks.h"

#include <fmt/format.h>

#include <algorithm>

#include "libshard/core/error.h"
#include "libshard/core/hash_table.h"
#include "libshard/core/value_equality.h"
#include "libshard/io/paths.h"

namespace shard::deepspeed {

namespace {

Error missing(const TagFolder& folder, const StateFile& other, std::int64_t rank) {
  Error error(ErrorCode::kNotFound, fmt::format("the file of rank {} is missing", rank));
  error.in_file(join_path(folder.path, name_beside(other, rank))).of_kind(FindingKind::kMissingFile);
  return error.of_rank(static_cast<int>(rank));
}

Error other_world(const Catalog& catalog, std::uint32_t file, std::int64_t expected, std::int64_t found) {
  Error error(ErrorCode::kCorruption, "the save is of another number of ranks");
  error.in_file(catalog.files[file].path).of_kind(FindingKind::kWorldSizeMismatch);
  return error.expected(expected).found(found);
}

Error mixed(const Catalog& catalog, std::uint32_t file, const std::string& what) {
  Error error(ErrorCode::kCorruption, fmt::format("the files are of different saves: {}", what));
  return error.in_file(catalog.files[file].path).of_kind(FindingKind::kMixedSave);
}

void check_optimizers(const Catalog& catalog, const TagFolder& folder, const Save& save) {
  const OptimizerStates& first = save.optimizers.front();
  ValueEquality equality({.budget = catalog.arena->budget().get()});
  for (const OptimizerStates& rank : save.optimizers) {
    if (rank.data_ranks != first.data_ranks) throw other_world(catalog, rank.file, first.data_ranks, rank.data_ranks);
    if (rank.stage != first.stage) throw mixed(catalog, rank.file, "their ZeRO stages differ");
    for (const FlatState& state : rank.states) {
      if (std::ranges::find(first.states, state.name, &FlatState::name) != first.states.end()) continue;
      throw mixed(catalog, rank.file, fmt::format("it has the state '{}', which rank 0 has not", state.name));
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

void check_models(const Catalog& catalog, const TagFolder& folder, const Save& save, std::int64_t ranks) {
  const ModelStates& first = save.models.front();
  const Value* const step = find_key(*first.root, "global_steps");
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
    const Value* const other = find_key(*model.root, "global_steps");
    if (step != nullptr && other != nullptr && !equality.is_equal(*step, *other)) {
      throw mixed(catalog, model.file, "their steps differ");
    }
  }
  if (folder.sharded_models.empty() || save.models.size() == 1) return;
  const std::int64_t found = std::ssize(save.models);
  if (found < ranks) throw missing(folder, folder.sharded_models.front(), found);
  if (found > ranks) throw other_world(catalog, save.models[static_cast<std::size_t>(ranks)].file, ranks, found);
}

}  // namespace

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

std::int64_t check_save(const Catalog& catalog, const TagFolder& folder, const Save& save, bool from_module,
                        std::optional<std::int64_t> ranks_expected) {
  const ModelStates& model = save.models.front();
  std::int64_t ranks = model.data_ranks;
  if (!save.optimizers.empty()) {
    ranks = save.optimizers.front().data_ranks;
    check_optimizers(catalog, folder, save);
  } else if (model.stage > 0 && !(from_module && model.stage < 3)) {
    throw Error(ErrorCode::kNotFound, "the files of optimizer states are missing, which hold the weights")
        .in_file(folder.path)
        .of_kind(FindingKind::kMissingFile)
        .expected(fmt::format("{} files like zero_pp_rank_0_mp_rank_00_optim_states.pt", ranks));
  }
  check_models(catalog, folder, save, ranks);
  if (ranks_expected && ranks != 0 && *ranks_expected != ranks) {
    throw other_world(catalog, model.file, *ranks_expected, ranks);
  }
  return ranks;
}

void check_saved_names(const Catalog& catalog, const torch_save::SavedFiles& files) {
  HashSet<std::string_view> names;
  for (const File& file : catalog.files) names.insert(file.path);
  for (std::uint32_t i = 0; i < catalog.files.size(); ++i) {
    const std::string& path = catalog.files[i].path;
    const std::string name = base_name(path), saved = files.saved_as(i) + ".pt";
    if (name == saved || !names.contains(path.substr(0, path.size() - name.size()) + saved)) continue;
    throw Error(ErrorCode::kCorruption, "the file was saved under another rank's name")
        .in_file(path)
        .of_kind(FindingKind::kRankMismatch)
        .expected(name)
        .found(saved)
        .because("files were swapped, or one was copied over another");
  }
}

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
  const Value* const step = find_key(*first.root, "global_steps");
  ValueEquality equality({.budget = catalog.arena->budget().get()});
  for (const Save& save : saves) {
    const ModelStates& model = save.models.front();
    if (save.optimizers.size() != saves.front().optimizers.size()) {
      throw other_world(catalog, model.file, std::ssize(saves.front().optimizers), std::ssize(save.optimizers));
    }
    const Value* const other = find_key(*model.root, "global_steps");
    if (step != nullptr && other != nullptr && !equality.is_equal(*step, *other)) {
      throw mixed(catalog, model.file, "their steps differ");
    }
  }
}

}  // namespace shard::deepspeed
