#include "formats/deepspeed/reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "formats/deepspeed/rank_checks.h"
#include "formats/deepspeed/save_reader.h"
#include "formats/deepspeed/universal_folder.h"
#include "formats/torch/check_saved.h"
#include "libshard/core/error.h"

namespace shard::deepspeed {

SaveReader::SaveReader(const Source& source, const OpenOptions& options, Listing listing)
    : folder_(find_tag_folder(source)),
      files_(*source.store, catalog_, {folder_.path, options.opaque_globals, nullptr}) {
  catalog_.format = "deepspeed";
  std::int64_t last = 0;
  for (const auto* files : {&folder_.models, &folder_.sharded_models, &folder_.optimizers}) {
    if (!files->empty()) last = std::max(last, files->back().model_rank);
  }
  if (last > 0 && listing == Listing::kWhole) {
    throw Error(ErrorCode::kUnsupported, "cannot write a save of several model-parallel ranks").in_file(folder_.path);
  }
  for (std::int64_t rank = 0; rank <= last; ++rank) read_save(of_model_rank(folder_, rank), options);
  check_model_ranks(catalog_, folder_, saves_);
  describe(catalog_.world_size.value_or(0));
  const bool from_module = options.weights == Weights::kModule;
  if (listing == Listing::kWhole) {
    flat_ = merge_whole(catalog_, files_, save());
  } else {
    merge(catalog_, files_, saves_, from_module);
  }
  validate_catalog(catalog_, *options.findings);
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
  Save& save = saves_.emplace_back();
  for (const StateFile& file : models) save.models.push_back(read_model_states(catalog_, files_, file));
  for (const StateFile& file : folder.optimizers) {
    save.optimizers.push_back(read_optimizer_states(catalog_, files_, file));
  }
  const std::int64_t ranks =
      check_save(catalog_, folder, save, options.weights == Weights::kModule, options.ranks_expected);
  if (ranks > 0) catalog_.world_size = ranks;
}

bool SaveReader::check_container(std::uint32_t index, ContainerReport& report) const {
  torch_save::check_saved_file(files_.file(index), report);
  return true;
}

std::uint32_t SaveReader::flat_tensor(std::string_view name) const {
  const Value* const* const found = flat_.find(name);
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
  const ModelStates& model = save().models.front();
  if (ranks > 0) catalog_.world_size = ranks * model_ranks;
  if (const Value* version = find_key(*model.root, "ds_version"); version != nullptr && version->is_string()) {
    catalog_.format_version = version->text();
  }
  if (save().optimizers.empty() && model.stage <= 0) {
    catalog_.warnings.emplace_back("the weights are those of the module: without ZeRO nothing names their masters");
  }
}

bool detect(const Source& source) {
  const SourceStore& store = *source.store;
  if (source.paths.size() != 1 || !is_tag_folder(store, source.paths.front())) return false;
  return !holds_universal(store, source.paths.front());  // That has files of the model's states too.
}

std::unique_ptr<Reader> open(const Source& source, const OpenOptions& options) {
  return std::make_unique<SaveReader>(source, options, Listing::kNamed);
}

}  // namespace shard::deepspeed
