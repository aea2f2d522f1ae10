#include "formats/deepspeed/universal_reader.h"

#include <fmt/format.h>

#include <span>
#include <vector>

#include "formats/deepspeed/merge.h"
#include "formats/deepspeed/universal_folder.h"
#include "formats/torch/check_saved.h"
#include "formats/torch/saved_files.h"
#include "libshard/io/paths.h"

namespace shard::deepspeed {

namespace {

class UniversalReader final : public Reader {
 public:
  UniversalReader(const Source& source, const OpenOptions& options)
      : folder_(find_universal_folder(source)),
        files_(*source.store, catalog_, {folder_.path, options.opaque_globals, nullptr}) {
    catalog_.format = "deepspeed-universal";
    Save save;
    for (const StateFile& file : folder_.models) save.models.push_back(read_model_states(catalog_, files_, file));
    read_files(save.universal.emplace());
    if (const Value* version = find_key(*save.models.front().root, "ds_version")) {
      if (version->is_string()) catalog_.format_version = version->text();
    }
    merge(catalog_, files_, std::span(&save, 1), options.weights == Weights::kModule);
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
  void read_files(UniversalStates& states) {
    states.is_parted = folder_.are_models_of_ranks;
    read_universal_states(catalog_, files_, fmt::format("{}/{}", kZeroFolder, kOptimizerFile), states);
    for (const UniversalFolder::Param& param : folder_.params) {
      const std::string_view name = catalog_.arena->copy(param.name);
      for (const std::string& file : param.files) {
        states.files.push_back(read_universal_file(catalog_, files_,
                                                   fmt::format("{}/{}/{}.pt", kZeroFolder, param.name, file), name,
                                                   catalog_.arena->copy(file)));
      }
    }
  }

  Catalog catalog_ = source_catalog();
  UniversalFolder folder_;
  torch_save::SavedFiles files_;
};

}  // namespace

bool detect_universal(const Source& source) {
  return source.paths.size() == 1 && is_universal_folder(*source.store, source.paths.front());
}

std::unique_ptr<Reader> open_universal(const Source& source, const OpenOptions& options) {
  return std::make_unique<UniversalReader>(source, options);
}

}  // namespace shard::deepspeed
