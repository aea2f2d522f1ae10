#include "formats/deepspeed/reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "formats/deepspeed/format.h"
#include "formats/deepspeed/join.h"
#include "formats/deepspeed/rank_checks.h"
#include "formats/deepspeed/save_reader.h"
#include "formats/deepspeed/universal_folder.h"
#include "libshard/core/error.h"
#include "libshard/io/paths.h"

namespace shard::deepspeed {

SaveReader::SaveReader(const Source& source, const OpenOptions& options, Listing listing)
    : SaveReader(source, options, listing, find_tag_folder(source)) {}

SaveReader::SaveReader(const Source& source, const OpenOptions& options, Listing listing, TagFolder folder)
    : SavedReader(*source.store, {folder.path, options.opaque_globals, nullptr}), folder_(std::move(folder)) {
  catalog_.format = "deepspeed";
  std::int64_t last = 0;
  for (const auto* files : {&folder_.models, &folder_.sharded_models, &folder_.optimizers}) {
    if (!files->empty()) last = std::max(last, files->back().model_rank);
  }
  for (std::int64_t rank = 0; rank <= last; ++rank) {
    read_save(folders_.emplace_back(of_model_rank(folder_, rank)), options);
  }
  check_model_ranks(catalog_, folder_, saves_);
  describe(catalog_.world_size.value_or(0));
  const bool from_module = wants_module(options);
  if (listing == Listing::kNamed) {
    merge(catalog_, files_, saves_, from_module);
  } else {
    const Save& first = saves_.front();
    const bool has_parts = last > 0 || holds_rules(first.models.front());
    flat_ = merge_whole(catalog_, files_, saves_, listing == Listing::kJoined && has_parts && !first.is_parted());
  }
  check_saved_names(catalog_, files_);
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
  const std::int64_t ranks = check_save(catalog_, folder, save, wants_module(options), options.ranks_expected);
  if (ranks > 0) catalog_.world_size = ranks;
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

bool detect(const Source& source) {
  const SourceStore& store = *source.store;
  if (source.paths.size() != 1 || !is_tag_folder(store, source.paths.front())) return false;
  return !holds_universal(store, source.paths.front());  // That has files of the model's states too.
}

std::unique_ptr<Reader> open(const Source& source, const OpenOptions& options) {
  return std::make_unique<SaveReader>(source, options, Listing::kNamed);
}

}  // namespace shard::deepspeed
