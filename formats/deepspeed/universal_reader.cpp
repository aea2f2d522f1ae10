#include "formats/deepspeed/universal_reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <span>
#include <utility>
#include <vector>

#include "formats/deepspeed/format.h"
#include "formats/deepspeed/merge.h"
#include "formats/deepspeed/universal_folder.h"
#include "formats/torch/saved_reader.h"
#include "libshard/core/error.h"
#include "libshard/core/first_names.h"
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
    for (const StateFile& file : folder_.models) {
      ModelStates states = read_model_states(catalog_, files_, file);
      if (file.model_rank == 0) save.models.push_back(std::move(states));
    }
    if (save.models.empty()) throw missing_first();
    read_files(save.universal.emplace());
    check_states(*options.findings);
    if (save.universal->is_joined) check_module(save, wants_module(options));
    if (const Value* version = find_key(*save.models.front().root, "ds_version")) {
      if (version->is_string()) catalog_.format_version = version->text();
    }
    merge(catalog_, files_, std::span(&save, 1), wants_module(options));
    validate_catalog(catalog_, *options.findings);
  }

  Error missing_first() const {
    return Error(ErrorCode::kNotFound, "the model's states of model-parallel rank 0 are missing")
        .in_file(folder_.path)
        .of_kind(FindingKind::kMissingFile);
  }

  /// Parameters are whole; of what only the modules hold, rank 0's buffers are read as those of all.
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
        states.files.push_back(read_universal_file(catalog_, files_,
                                                   fmt::format("{}/{}/{}.pt", kZeroFolder, param.name, file), name,
                                                   catalog_.arena->copy(file)));
      }
    }
  }

  /// Parameters have one set of files each, mostly the same. One that is a part of the most frequent has lost some;
  /// other sets are those of other optimizers.
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
