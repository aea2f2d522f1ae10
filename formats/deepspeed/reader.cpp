#include "formats/deepspeed/reader.h"

#include <vector>

#include "formats/deepspeed/merge.h"
#include "formats/deepspeed/rank_checks.h"
#include "formats/deepspeed/tag_folder.h"
#include "formats/torch/check_saved.h"
#include "libshard/core/error.h"

namespace shard::deepspeed {

namespace {

class DeepSpeedReader final : public Reader {
 public:
  DeepSpeedReader(const Source& source, const OpenOptions& options)
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
    Save save;
    for (const StateFile& file : models) save.models.push_back(read_model_states(catalog_, files_, file));
    for (const StateFile& file : folder_.optimizers) {
      save.optimizers.push_back(read_optimizer_states(catalog_, files_, file));
    }
    const bool from_module = options.weights == Weights::kModule;
    describe(save, check_save(catalog_, folder_, save, from_module, options.ranks_expected));
    merge(catalog_, files_, save, from_module);
    validate_catalog(catalog_, *options.findings);
  }

  const Catalog& catalog() const override { return catalog_; }
  std::shared_ptr<const RandomReader> file(std::uint32_t index) const override { return files_.file(index); }
  std::shared_ptr<const RandomReader> bytes_of(std::uint32_t storage) const override {
    return files_.bytes_of(storage);
  }
  void locate(std::span<const std::uint32_t> tensors) override { files_.locate_tensors(tensors); }
  bool check_container(std::uint32_t index, ContainerReport& report) const override {
    torch_save::check_saved_file(files_.file(index), report);
    return true;
  }

 private:
  void describe(const Save& save, std::int64_t ranks) {
    for (const ModelStates& model : save.models) {
      catalog_.files[model.file].rank = static_cast<int>(model.ranks.data_rank);
    }
    for (const OptimizerStates& rank : save.optimizers) {
      catalog_.files[rank.file].rank = static_cast<int>(rank.ranks.data_rank);
    }
    const ModelStates& model = save.models.front();
    if (ranks > 0) catalog_.world_size = ranks;
    if (const Value* version = find_key(*model.root, "ds_version"); version != nullptr && version->is_string()) {
      catalog_.format_version = version->text();
    }
    if (save.optimizers.empty() && model.stage <= 0) {
      catalog_.warnings.emplace_back("the weights are those of the module: without ZeRO nothing names their masters");
    }
  }

  Catalog catalog_ = source_catalog();
  TagFolder folder_;
  torch_save::SavedFiles files_;
};

}  // namespace

bool detect(const Source& source) {
  return source.paths.size() == 1 && is_tag_folder(*source.store, source.paths.front());
}

std::unique_ptr<Reader> open(const Source& source, const OpenOptions& options) {
  return std::make_unique<DeepSpeedReader>(source, options);
}

}  // namespace shard::deepspeed
