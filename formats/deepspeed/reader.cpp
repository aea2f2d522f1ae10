#include "formats/deepspeed/reader.h"

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
  const std::vector<StateFile>& models = folder_.models.empty() ? folder_.sharded_models : folder_.models;
  if (models.empty()) {
    throw Error(ErrorCode::kNotFound, "the file of the model's states is missing")
        .in_file(folder_.path)
        .of_kind(FindingKind::kMissingFile)
        .expected("mp_rank_00_model_states.pt");
  }
  check_names(folder_, models);
  check_names(folder_, folder_.optimizers);
  for (const StateFile& file : models) save_.models.push_back(read_model_states(catalog_, files_, file));
  for (const StateFile& file : folder_.optimizers) {
    save_.optimizers.push_back(read_optimizer_states(catalog_, files_, file));
  }
  const bool from_module = options.weights == Weights::kModule;
  describe(check_save(catalog_, folder_, save_, from_module, options.ranks_expected));
  if (listing == Listing::kWhole) {
    flat_ = merge_whole(catalog_, files_, save_);
  } else {
    merge(catalog_, files_, save_, from_module);
  }
  validate_catalog(catalog_, *options.findings);
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
  for (const ModelStates& model : save_.models) {
    catalog_.files[model.file].rank = static_cast<int>(model.ranks.data_rank);
  }
  for (const OptimizerStates& rank : save_.optimizers) {
    catalog_.files[rank.file].rank = static_cast<int>(rank.ranks.data_rank);
  }
  const ModelStates& model = save_.models.front();
  if (ranks > 0) catalog_.world_size = ranks;
  if (const Value* version = find_key(*model.root, "ds_version"); version != nullptr && version->is_string()) {
    catalog_.format_version = version->text();
  }
  if (save_.optimizers.empty() && model.stage <= 0) {
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
