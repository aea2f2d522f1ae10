#include "formats/deepspeed/tag_folder.h"

#include <fmt/format.h>

#include <algorithm>
#include <tuple>

#include "libshard/core/error.h"
#include "libshard/core/name_pattern.h"
#include "libshard/io/paths.h"
#include "libshard/io/small_text.h"

namespace shard::deepspeed {

namespace {

constexpr std::string_view kLatest = "latest";
constexpr std::int64_t kMaxTagBytes = 4096;

/// Some 16-bit optimizers put their dtype before the usual name.
std::string_view without_precision(std::string_view name) {
  for (const std::string_view prefix : {"bf16_", "fp16_"}) {
    if (name.starts_with(prefix)) return name.substr(prefix.size());
  }
  return name;
}

/// Adds the file to the list that its name selects. \returns false for other files.
bool sort_in(const std::string& name, TagFolder& folder) {
  static const NamePattern kModel("mp_rank_{model}_model_states.pt"),
      kShardedModel("zero_pp_rank_{data}_mp_rank_{model}_model_states.pt"),
      kOptimizer("zero_pp_rank_{data}_mp_rank_{model}_optim_states.pt");
  if (const auto model = kModel.read<1>(name)) {
    folder.models.push_back({name, 0, model->front()});
  } else if (const auto sharded = kShardedModel.read<2>(without_precision(name))) {
    folder.sharded_models.push_back({name, sharded->front(), sharded->back()});
  } else if (const auto optimizer = kOptimizer.read<2>(without_precision(name))) {
    folder.optimizers.push_back({name, optimizer->front(), optimizer->back()});
  } else {
    return false;
  }
  return true;
}

/// Does the same for the files of layers and experts, which do not identify a tag folder.
bool sort_part_in(const std::string& name, TagFolder& folder) {
  static const NamePattern kLayer("layer_{layer}-model_states.pt"),
      kLayerOfRank("layer_{layer}-model_{model}-model_states.pt"),
      kExpert("layer_{layer}_expert_{expert}_mp_rank_{model}_model_states.pt"),
      kOldExpert("expert_{expert}_mp_rank_{model}_model_states.pt"),
      kOptimizer("expp_rank_{data}_mp_rank_{model}_optim_states.pt");
  if (const auto layer = kLayer.read<1>(name)) {
    folder.layers.push_back({name, 0, layer->front(), 0});
  } else if (const auto of_rank = kLayerOfRank.read<2>(name)) {
    folder.layers.push_back({name, of_rank->back(), of_rank->front(), 0});
  } else if (const auto expert = kExpert.read<3>(name)) {
    folder.experts.push_back({name, (*expert)[2], (*expert)[0], (*expert)[1]});
  } else if (const auto old = kOldExpert.read<2>(name)) {
    folder.experts.push_back({name, old->back(), -1, old->front()});
  } else if (const auto optimizer = kOptimizer.read<2>(name)) {
    folder.expert_optimizers.push_back({name, optimizer->front(), optimizer->back()});
  } else {
    return false;
  }
  return true;
}

/// The files of states among `names`; their folder is `path`.
TagFolder sort_state_files(const std::string& path, std::span<const std::string> names) {
  TagFolder folder;
  folder.path = path;
  for (const std::string& name : names) {
    if (!sort_in(name, folder)) sort_part_in(name, folder);
  }
  const auto by_ranks = [](const StateFile& a, const StateFile& b) {
    return std::tie(a.model_rank, a.data_rank, a.name) < std::tie(b.model_rank, b.data_rank, b.name);
  };
  for (auto* files : {&folder.models, &folder.sharded_models, &folder.optimizers, &folder.expert_optimizers}) {
    std::ranges::sort(*files, by_ranks);
  }
  const auto by_parts = [](const PartFile& a, const PartFile& b) {
    return std::tie(a.model_rank, a.layer, a.expert, a.name) < std::tie(b.model_rank, b.layer, b.expert, b.name);
  };
  for (auto* files : {&folder.layers, &folder.experts}) std::ranges::sort(*files, by_parts);
  return folder;
}

/// True for the name of a file of model or optimizer states.
bool is_state_file(std::string_view name) {
  TagFolder ignored;
  return sort_in(std::string(name), ignored);
}

/// Whether a folder with these names is a tag folder.
bool holds_states(std::span<const std::string> names) {
  return std::ranges::any_of(names, [](const std::string& name) { return is_state_file(name); });
}

/// The kind of a save's part that is recognised but cannot be joined.
std::string_view kind_of_other(std::string_view name) {
  TagFolder ignored;
  if (sort_part_in(std::string(name), ignored)) return {};
  if (name.starts_with("layer_") && name.ends_with("model_states.pt")) return "layers with unknown numbers of ranks";
  if (name == "offloaded_tensors") return "tensors that were offloaded to disk";
  const std::size_t end = name.find(".pt-");
  if (end != std::string_view::npos && is_state_file(name.substr(0, end + 3))) return "files written in several pieces";
  return {};
}

/// A save with such parts would lose tensors if the other files were read alone.
void refuse_others(const std::string& path, std::span<const std::string> names) {
  for (const std::string& name : names) {
    const std::string_view kind = kind_of_other(name);
    if (kind.empty()) continue;
    Error error(ErrorCode::kUnsupported, fmt::format("cannot read a DeepSpeed save that contains {}", kind));
    if (name.ends_with(".pt")) error.hint("its files can be read one at a time: name one of them as the source");
    throw error.in_file(join_path(path, name));
  }
}

}  // namespace

/// A tag comes from a file, so it may only name a folder inside this one.
std::string named_folder(const SourceStore& store, const std::string& path, std::string_view file_name) {
  const std::string tag = small_text(store, join_path(path, file_name), kMaxTagBytes);
  if (tag.empty() || tag == "." || tag == ".." || tag.find('/') != std::string::npos ||
      tag.find('\0') != std::string::npos) {
    return {};
  }
  const std::string folder = join_path(path, tag);
  return store.is_folder(folder) ? folder : std::string();
}

TagFolder of_model_rank(const TagFolder& folder, std::int64_t model_rank) {
  TagFolder part = folder;
  const auto is_other = [&](const auto& file) { return file.model_rank != model_rank; };
  for (auto* files : {&part.models, &part.sharded_models, &part.optimizers, &part.expert_optimizers}) {
    std::erase_if(*files, is_other);
  }
  std::erase_if(part.experts, is_other);
  part.layers.clear();
  return part;
}

std::string name_beside(const StateFile& other, std::int64_t rank) {
  constexpr std::string_view kMark = "pp_rank_";  // zero_pp_rank_ or expp_rank_.
  const std::size_t begin = other.name.find(kMark) + kMark.size();
  const std::size_t end = other.name.find('_', begin);
  return fmt::format("{}{}{}", other.name.substr(0, begin), rank, other.name.substr(end));
}

bool is_tag_folder(const SourceStore& store, const std::string& path) {
  if (!store.is_folder(path)) return false;
  if (holds_states(store.list(path))) return true;
  const std::string latest = named_folder(store, path, kLatest);
  return !latest.empty() && holds_states(store.list(latest));
}

TagFolder find_tag_folder(const Source& source) {
  const SourceStore& store = *source.store;
  const std::string& path = source.paths.front();
  if (!is_one_folder(source)) {
    throw Error(ErrorCode::kUnsupported, "cannot read single files of a DeepSpeed checkpoint")
        .in_file(path)
        .hint("pass its folder");
  }
  std::string folder = path;
  std::vector<std::string> names = store.list(path);
  const std::string latest = holds_states(names) ? std::string() : named_folder(store, path, kLatest);
  if (!latest.empty()) {
    folder = latest;
    names = store.list(latest);
  }
  if (!holds_states(names)) {
    Error error(ErrorCode::kNotFound, "the folder does not contain DeepSpeed's files of model or optimizer states");
    error.in_file(folder).of_kind(FindingKind::kMissingFile);
    const bool is_named = store.is_file(join_path(path, kLatest));
    if (is_named && latest.empty()) error.because("its file 'latest' names a folder that does not exist");
    throw error;
  }
  refuse_others(folder, names);
  return sort_state_files(folder, names);
}

namespace {

constexpr std::string_view kSuffix = ".pt";

/// The folder itself or the one that latest_universal names; empty if neither is a universal checkpoint.
std::string universal_folder(const SourceStore& store, const std::string& path) {
  if (!store.is_folder(path)) return {};
  if (holds_universal(store, path)) return path;
  const std::string named = named_folder(store, path, kLatestUniversal);
  return !named.empty() && holds_universal(store, named) ? named : std::string();
}

Error missing_in(const std::string& path, const std::string& message) {
  return Error(ErrorCode::kNotFound, message).in_file(path).of_kind(FindingKind::kMissingFile);
}

}  // namespace

/// Recognised by the optimizer's file, or if that is missing, by the weights of a parameter.
bool holds_universal(const SourceStore& store, const std::string& path) {
  const std::string zero = join_path(path, kZeroFolder);
  if (store.is_file(join_path(zero, kOptimizerFile))) return true;
  if (!store.is_folder(zero)) return false;
  const std::string weights = fmt::format("{}{}", kWeightFile, kSuffix);
  return std::ranges::any_of(store.list(zero), [&](const std::string& name) {
    return store.is_file(join_path(join_path(zero, name), weights));
  });
}

bool is_universal_folder(const SourceStore& store, const std::string& path) {
  return !universal_folder(store, path).empty();
}

UniversalFolder find_universal_folder(const Source& source) {
  const SourceStore& store = *source.store;
  UniversalFolder folder;
  if (source.paths.size() > 1) {
    throw Error(ErrorCode::kUnsupported, "cannot read single files of a universal checkpoint")
        .in_file(source.paths.front())
        .hint("pass its folder");
  }
  folder.path = universal_folder(store, source.paths.front());
  if (folder.path.empty()) {
    throw missing_in(source.paths.front(), "the folder does not contain a universal checkpoint")
        .expected("zero/optimizer_state.pt");
  }
  const TagFolder files = sort_state_files(folder.path, store.list(folder.path));
  folder.are_models_of_ranks = files.models.empty();
  folder.has_layers = !files.layers.empty();
  folder.models = folder.are_models_of_ranks ? files.sharded_models : files.models;
  if (folder.models.empty()) throw missing_in(folder.path, "the file of the model's states is missing");
  if (folder.are_models_of_ranks && folder.models.back().model_rank > 0) {
    throw Error(ErrorCode::kUnsupported, "cannot read a stage 3 save of several model-parallel ranks")
        .in_file(join_path(folder.path, folder.models.back().name));
  }
  const std::string zero = join_path(folder.path, kZeroFolder);
  for (const std::string& name : store.list(zero)) {
    const std::string path = join_path(zero, name);
    if (!store.is_folder(path)) continue;
    UniversalFolder::Param param{name, {}};
    for (const std::string& file : store.list(path)) {
      if (file.ends_with(kSuffix)) param.files.push_back(file.substr(0, file.size() - kSuffix.size()));
    }
    std::ranges::sort(param.files);
    if (!std::ranges::binary_search(param.files, kWeightFile)) {
      throw missing_in(path, fmt::format("the parameter '{}' has no weights", name))
          .expected("fp32.pt")
          .of_tensor(name);
    }
    folder.params.push_back(std::move(param));
  }
  std::ranges::sort(folder.params, {}, &UniversalFolder::Param::name);
  return folder;
}

}  // namespace shard::deepspeed
