#include "formats/deepspeed/universal_folder.h"

#include <fmt/format.h>

#include <algorithm>

#include "libshard/core/error.h"
#include "libshard/io/paths.h"

namespace shard::deepspeed {

namespace {

constexpr std::string_view kSuffix = ".pt";

/// The folder itself or the one that latest_universal names; empty if neither is a universal checkpoint.
std::string universal_folder(const SourceStore& store, const std::string& path) {
  if (store.status(path).kind != FileKind::kFolder) return {};
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
  if (store.status(join_path(zero, kOptimizerFile)).kind == FileKind::kFile) return true;
  if (store.status(zero).kind != FileKind::kFolder) return false;
  const std::string weights = fmt::format("{}{}", kWeights, kSuffix);
  return std::ranges::any_of(store.list(zero), [&](const std::string& name) {
    return store.status(join_path(join_path(zero, name), weights)).kind == FileKind::kFile;
  });
}

bool is_universal_folder(const SourceStore& store, const std::string& path) {
  return !universal_folder(store, path).empty();
}

UniversalFolder find_universal_folder(const Source& source) {
  const SourceStore& store = *source.store;
  UniversalFolder folder;
  if (source.paths.size() > 1) {
    throw Error(ErrorCode::kUnsupported, "cannot read single files of a universal checkpoint: name its folder")
        .in_file(source.paths.front());
  }
  folder.path = universal_folder(store, source.paths.front());
  if (folder.path.empty()) {
    throw missing_in(source.paths.front(), "the folder does not hold a universal checkpoint")
        .expected("zero/optimizer_state.pt");
  }
  const TagFolder files = sort_state_files(folder.path, store.list(folder.path));
  folder.are_models_of_ranks = files.models.empty();
  folder.models = folder.are_models_of_ranks ? files.sharded_models : files.models;
  if (folder.models.empty()) throw missing_in(folder.path, "the file of the model's states is missing");
  if (folder.are_models_of_ranks && folder.models.back().model_rank > 0) {
    throw Error(ErrorCode::kUnsupported, "cannot read a stage 3 save of several model-parallel ranks")
        .in_file(join_path(folder.path, folder.models.back().name));
  }
  const std::string zero = join_path(folder.path, kZeroFolder);
  for (const std::string& name : store.list(zero)) {
    const std::string path = join_path(zero, name);
    if (store.status(path).kind != FileKind::kFolder) continue;
    UniversalFolder::Param param{name, {}};
    for (const std::string& file : store.list(path)) {
      if (file.ends_with(kSuffix)) param.files.push_back(file.substr(0, file.size() - kSuffix.size()));
    }
    std::ranges::sort(param.files);
    if (!std::ranges::binary_search(param.files, kWeights)) {
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
