#include "formats/deepspeed/universal_reader.h"

#include <fmt/format.h>

#include <span>
#include <utility>
#include <vector>

#include "formats/deepspeed/merge.h"
#include "formats/deepspeed/universal_folder.h"
#include "formats/torch/saved_reader.h"
#include "libshard/io/paths.h"

namespace shard::deepspeed {

namespace {

class UniversalReader final : public torch_save::SavedReader {
 public:
  UniversalReader(const Source& source, const OpenOptions& options)
      : UniversalReader(source, options, find_universal_folder(source)) {}

 private:
  UniversalReader(const Source& source, const OpenOptions& options, UniversalFolder folder)
      : SavedReader(*source.store, {folder.path, options.opaque_globals, nullptr}), folder_(std::move(folder)) {
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

  UniversalFolder folder_;
};

}  // namespace

bool detect_universal(const Source& source) {
  return source.paths.size() == 1 && is_universal_folder(*source.store, source.paths.front());
}

std::unique_ptr<Reader> open_universal(const Source& source, const OpenOptions& options) {
  return std::make_unique<UniversalReader>(source, options);
}

}  // namespace shard::deepspeed
