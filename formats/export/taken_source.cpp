#include "formats/export/taken_source.h"

#include <fmt/format.h>

#include <utility>

#include "formats/export/model_folder.h"
#include "formats/finder.h"
#include "formats/foreign.h"
#include "formats/parts/hf_index/folder_names.h"
#include "formats/registry.h"
#include "libshard/core/contains.h"
#include "libshard/core/error.h"
#include "libshard/core/suffixes.h"
#include "libshard/export/loader_files.h"
#include "libshard/io/paths.h"
#include "libshard/manifest/manifest.h"

namespace shard {

namespace {

constexpr const char* kPipeline = "model_index.json";

TakenSource found_below(const FoundCheckpoint& found) {
  const bool is_folder_of_one = found.kind == FoundCheckpoint::Kind::kFolder;
  return {.label = found.path,
          .paths = found.paths(),
          .is_found = true,
          .place = is_folder_of_one ? found.path : parent_path(found.path)};
}

[[noreturn]] void refuse_several(const std::string& folder, const std::vector<FoundCheckpoint>& found) {
  Error error(ErrorCode::kInvalidArgument, fmt::format("cannot choose which checkpoint of '{}' to export", folder));
  error.in_file(folder);
  throw Error(error.because(fmt::format("it contains several: {}", suggest_each(error, folder, found))));
}

[[noreturn]] void refuse_several_files(const std::string& folder, const std::vector<std::string>& names) {
  std::vector<FoundCheckpoint> found;
  for (const std::string& name : names) found.push_back({FoundCheckpoint::Kind::kFile, join_path(folder, name)});
  refuse_several(folder, found);
}

/// The library that loads a folder, by the configuration in it.
Loader loader_of(const SourceStore& store, const std::string& folder, const std::vector<std::string>& names) {
  if (contains(names, kConfigName)) {
    return read_model_config(store, folder).is_diffusers ? Loader::kDiffusers : Loader::kTransformers;
  }
  return contains(names, kAdapterConfigName) ? Loader::kPeft : Loader::kTransformers;
}

/// The sets of weights that the folder's loader opens. Without a configuration, the usual names identify the loader.
std::vector<LoaderFiles> sets_of_loader(const SourceStore& store, const std::string& folder,
                                        const std::vector<std::string>& names) {
  const Loader loader = loader_of(store, folder, names);
  std::vector<LoaderFiles> sets = loader_files(names, loader);
  for (const Loader other : {Loader::kTransformers, Loader::kDiffusers, Loader::kPeft}) {
    if (sets.empty() && other != loader) sets = loader_files(names, other);
  }
  return sets;
}

std::string first_file(const LoaderFiles& set) { return set.index.empty() ? set.weights.front() : set.index; }

/// Without a config.json it is unknown whether a model or the adapter beside it is meant.
void refuse_model_with_adapter(const std::string& folder, const std::vector<std::string>& names) {
  if (contains(names, kConfigName)) return;
  const std::vector<LoaderFiles> models = loader_files(names, Loader::kTransformers),
                                 adapters = loader_files(names, Loader::kPeft);
  if (models.empty() || adapters.empty()) return;
  refuse_several_files(folder, {first_file(models.front()), first_file(adapters.front())});
}

/// Parts of a model that no loader opens by their names without an index, such as torchtune's
/// ft-model-00001-of-00002.safetensors, may be meant instead of the adapter beside them.
void refuse_parts_with_adapter(const std::string& folder, const std::vector<std::string>& names,
                               const LoaderFiles& set) {
  const std::vector<LoaderFiles> adapters = loader_files(names, Loader::kPeft);
  if (adapters.empty() || adapters.front().stem != set.stem) return;
  std::vector<FoundCheckpoint> found;
  for (const hf_index::CountedSet& parts : hf_index::counted_sets(names, kSafetensorsSuffix)) {
    if (parts.base.starts_with(set.stem)) continue;
    found.push_back({FoundCheckpoint::Kind::kFiles, join_path(folder, parts.pattern())});
    for (const std::string& name : parts.names) found.back().files.push_back(join_path(folder, name));
  }
  if (found.empty()) return;
  found.push_back({FoundCheckpoint::Kind::kFile, join_path(folder, first_file(set))});
  refuse_several(folder, found);
}

/// If sets differ in their variants, only the user knows which one to take.
void check_variants(const std::string& folder, const std::vector<LoaderFiles>& sets) {
  if (sets.front().variant.empty()) return;
  std::vector<std::string> choices;
  bool do_differ = false;
  for (const LoaderFiles& set : sets) {
    do_differ = do_differ || set.variant != sets.front().variant;
    choices.push_back(first_file(set));
  }
  if (do_differ) refuse_several_files(folder, choices);
}

void check_parts(const std::string& folder, const LoaderFiles& set) {
  const std::string missing = hf_index::missing_part(set.weights, set.suffix);
  if (missing.empty()) return;
  throw Error(ErrorCode::kNotFound, "a part is missing: the names of the others show it")
      .in_file(join_path(folder, missing))
      .of_kind(FindingKind::kMissingFile)
      .hint("fetch the missing file");
}

/// The weights that the loader of a model's folder opens; nothing for any other folder.
std::optional<TakenSource> take_loaded(const SourceStore& store, const std::string& folder) {
  const Source source{&store, {folder}};
  if (superseding_format(source, loader_format(kSafetensorsSuffix)) != nullptr) return std::nullopt;
  const std::vector<std::string> names = store.list(folder);
  const std::vector<LoaderFiles> sets = sets_of_loader(store, folder, names);
  if (sets.empty()) return std::nullopt;
  if (auto error = foreign_look_alike(source)) throw Error(*error);
  refuse_model_with_adapter(folder, names);
  check_variants(folder, sets);
  refuse_parts_with_adapter(folder, names, sets.front());
  const LoaderFiles& set = sets.front();
  TakenSource taken;
  taken.label = taken.place = folder;
  if (!set.index.empty()) {
    const std::string index = join_path(folder, set.index);
    const Format& format = loader_format(set.suffix);
    taken.paths = {format.detect({&store, {index}}) ? index : folder};  // The folder's reader reports its problem.
  } else if (set.weights.size() > 1 && set.suffix == kBinSuffix) {
    return std::nullopt;  // Parts of torch without their index.
  } else {
    check_parts(folder, set);
    for (const std::string& name : set.weights) taken.paths.push_back(join_path(folder, name));
  }
  for (const std::string& name : names) {
    const bool is_own = contains(set.weights, name);
    const bool is_model = is_weights_name(name) && !is_trainers_name(name);
    if (!is_own && !name.starts_with('.') && is_model) taken.other_weights.push_back(name);
  }
  return taken;
}

/// Refuses a pipeline of diffusers, which consists of several models in separate folders.
void refuse_pipeline(const SourceStore& store, const std::string& folder) {
  if (!store.is_file(join_path(folder, kPipeline))) return;
  std::vector<FoundCheckpoint> models;
  for (const std::string& name : store.list(folder)) {
    const std::string path = join_path(folder, name);
    if (name.starts_with('.') || !store.is_folder(path)) continue;
    if (!sets_of_loader(store, path, store.list(path)).empty()) {
      models.push_back({FoundCheckpoint::Kind::kFolder, path});
    }
  }
  if (models.size() > 1) refuse_several(folder, models);
}

/// Adds files of tensors beside checkpoints that no loader opens by their names, such as the output of an earlier run.
std::vector<FoundCheckpoint> with_loose_files(const SourceStore& store, const std::string& folder,
                                              std::vector<FoundCheckpoint> found) {
  const Format& format = loader_format(kSafetensorsSuffix);
  for (const std::string& name : store.list(folder)) {
    const std::string path = join_path(folder, name);
    const bool is_one = !name.starts_with('.') && name.ends_with(kSafetensorsSuffix) && format.detect({&store, {path}});
    if (is_one) found.push_back({FoundCheckpoint::Kind::kFile, path});
  }
  return found;
}

/// Selects one of the checkpoints in a folder.
TakenSource take_one(const SourceStore& store, const Source& folder, std::vector<FoundCheckpoint> below) {
  const std::vector<FoundCheckpoint> found = model_candidates(folder, std::move(below));
  if (found.empty()) detect_format(folder);  // Throws the same error as for every verb, because there is no model.
  if (found.size() != 1) refuse_several(folder.paths.front(), found);
  TakenSource taken = found_below(found.front());
  if (found.front().kind != FoundCheckpoint::Kind::kFolder) return taken;
  std::optional<TakenSource> loaded = take_loaded(store, found.front().path);
  if (!loaded) return taken;
  loaded->is_found = true;
  return *std::move(loaded);
}

/// True if the folder's file `latest` names a different save from `found`. The named save may be lost, and an older one
/// must not replace it silently.
bool contradicts_latest(const SourceStore& store, const std::string& folder, const FoundCheckpoint& found) {
  const std::optional<std::string> name = latest_name(store, folder);
  if (!name) return false;
  const std::string named = join_path(folder, *name);
  return name->empty() || (found.path != named && !found.path.starts_with(named + "/"));
}

}  // namespace

std::optional<TakenSource> take_only_checkpoint(const SourceStore& store, const std::string& folder,
                                                SearchFor search) try {
  // A manifest belongs to the whole folder, so no file in it is the checkpoint.
  if (store.exists(join_path(folder, kManifestName))) return std::nullopt;
  const Recognised recognised = recognise({&store, {folder}}, search);
  if (recognised.format != nullptr || recognised.below.size() != 1) return std::nullopt;
  if (contradicts_latest(store, folder, recognised.below.front())) return std::nullopt;
  return found_below(recognised.below.front());
} catch (const Error& error) {
  if (!is_about_content(error)) throw;
  return std::nullopt;  // Opening it fails in the same way, and its reader reports more.
}

TakenSource take_model(const SourceStore& store, const std::string& folder) {
  const Source source{&store, {folder}};
  if (const std::vector<FoundCheckpoint> models = numbered_models(source); !models.empty()) {
    refuse_several(folder, models);
  }
  refuse_pipeline(store, folder);
  if (std::optional<TakenSource> loaded = take_loaded(store, folder)) return *std::move(loaded);
  const Recognised recognised = recognise(source);
  if (recognised.format == nullptr) return take_one(store, source, recognised.below);
  TakenSource taken{.label = folder, .paths = {folder}, .place = folder};
  if (recognised.format != &loader_format(kSafetensorsSuffix)) return taken;
  std::vector<FoundCheckpoint> below = checkpoints_below(source);
  const std::vector<FoundCheckpoint> loose = with_loose_files(store, folder, {});
  if (below.empty() && loose.size() == 1) taken.paths = loose.front().paths();
  if (below.empty() || loose.empty()) return taken;
  return take_one(store, source, with_loose_files(store, folder, std::move(below)));
}

}  // namespace shard
