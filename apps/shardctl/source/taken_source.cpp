#include "apps/shardctl/source/taken_source.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <optional>
#include <string_view>
#include <utility>

#include "apps/shardctl/arguments/verb.h"
#include "apps/shardctl/session/ranks.h"
#include "apps/shardctl/source/map_choice.h"
#include "apps/shardctl/source/model_folder.h"
#include "apps/shardctl/source/source.h"
#include "formats/dcp_hf/format.h"
#include "formats/detect.h"
#include "formats/finder.h"
#include "formats/foreign.h"
#include "formats/parts/hf_index/folder_names.h"
#include "formats/safetensors/format.h"
#include "formats/torch/format.h"
#include "libshard/core/error.h"
#include "libshard/io/paths.h"
#include "libshard/manifest/manifest.h"

namespace shard::app {
namespace {

constexpr const char *kPipeline = "model_index.json", *kBin = ".bin";
/// Each source of this verb is a checkpoint.
constexpr std::string_view kComparing = "diff";
/// export looks for a model, and repair takes what the user named.
constexpr std::array<std::string_view, 2> kFindThemselves{"export", "repair"};

bool is_folder_at(const SourceStore& store, const std::string& path) {
  return store.status(path).kind == FileKind::kFolder;
}

TakenSource as_named(const ReadRequest& options) {
  return {.label = fmt::format("{}", fmt::join(options.paths, " ")), .paths = options.paths};
}

/// The one folder that was named, if it may be another than the checkpoint.
std::optional<std::string> named_folder(const Session& session, const ReadRequest& options) {
  if (!options.from.empty() || options.paths.size() != 1) return std::nullopt;
  if (!is_folder_at(source_store(session), options.paths.front())) return std::nullopt;
  if (!options.map.empty() && named_ranks(session, options)) return std::nullopt;
  return options.paths.front();
}

TakenSource found_below(const FoundCheckpoint& found) {
  const bool is_folder_of_one = found.kind == FoundCheckpoint::Kind::kFolder;
  return {.label = found.path,
          .paths = found.paths(),
          .is_found = true,
          .place = is_folder_of_one ? found.path : parent_path(found.path)};
}

[[noreturn]] void refuse_several(const std::string& folder, const std::vector<FoundCheckpoint>& found) {
  const std::size_t folder_bytes = join_path(folder, "").size();
  std::vector<std::string> names;
  Error error = usage(fmt::format("cannot tell which checkpoint of '{}' to export", folder)).in_file(folder);
  for (const FoundCheckpoint& each : found) {
    names.push_back(each.path.substr(folder_bytes));
    error.suggest(each.kind == FoundCheckpoint::Kind::kFiles ? Remedy::kReadFiles : Remedy::kReadFolder, each.path);
  }
  throw Error(error.because(fmt::format("it holds several: {}", fmt::join(names, ", "))));
}

[[noreturn]] void refuse_several_files(const std::string& folder, const std::vector<std::string>& names) {
  std::vector<FoundCheckpoint> found;
  for (const std::string& name : names) found.push_back({FoundCheckpoint::Kind::kFile, join_path(folder, name)});
  refuse_several(folder, found);
}

/// The library that loads a folder, by the configuration in it.
Loader loader_of(const SourceStore& store, const std::string& folder, const std::vector<std::string>& names) {
  const auto has = [&](const char* name) { return std::ranges::find(names, name) != names.end(); };
  if (has(kConfigName)) {
    return read_model_config(store, folder).is_diffusers ? Loader::kDiffusers : Loader::kTransformers;
  }
  return has(kAdapterConfigName) ? Loader::kPeft : Loader::kTransformers;
}

/// The sets of weights that the folder's loader opens. Without a configuration the usual names tell the loader.
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
  if (std::ranges::find(names, kConfigName) != names.end()) return;
  const std::vector<LoaderFiles> models = loader_files(names, Loader::kTransformers),
                                 adapters = loader_files(names, Loader::kPeft);
  if (models.empty() || adapters.empty()) return;
  refuse_several_files(folder, {first_file(models.front()), first_file(adapters.front())});
}

/// Of sets that differ in their variants only the user knows which one to take.
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
  throw Error(ErrorCode::kNotFound, "a part that the names of the others count is missing")
      .in_file(join_path(folder, missing))
      .of_kind(FindingKind::kMissingFile)
      .hint("fetch the missing file");
}

/// What the loader of a model's folder opens; nothing where it is none.
std::optional<TakenSource> take_loaded(const SourceStore& store, const std::string& folder) {
  const Source source{&store, {folder}};
  if (kDcpHfFormat.detect(source)) return std::nullopt;
  const std::vector<std::string> names = store.list(folder);
  const std::vector<LoaderFiles> sets = sets_of_loader(store, folder, names);
  if (sets.empty()) return std::nullopt;
  if (auto error = foreign_look_alike(source)) throw Error(*error);
  refuse_model_with_adapter(folder, names);
  check_variants(folder, sets);
  const LoaderFiles& set = sets.front();
  TakenSource taken;
  taken.label = taken.place = folder;
  if (!set.index.empty()) {
    const std::string index = join_path(folder, set.index);
    const Format& format = set.suffix == kBin ? kTorchFormat : kSafetensorsFormat;
    taken.paths = {format.detect({&store, {index}}) ? index
                                                    : folder};  // The folder's reader says what is wrong with it.
  } else if (set.weights.size() > 1 && set.suffix == kBin) {
    return std::nullopt;  // Parts of torch without their index.
  } else {
    check_parts(folder, set);
    for (const std::string& name : set.weights) taken.paths.push_back(join_path(folder, name));
  }
  for (const std::string& name : names) {
    const bool is_own = std::ranges::find(set.weights, name) != set.weights.end();
    if (!is_own && !name.starts_with('.') && is_weights_name(name)) taken.other_weights.push_back(name);
  }
  return taken;
}

/// A pipeline of diffusers is several models, each in a folder of its own.
void refuse_pipeline(const SourceStore& store, const std::string& folder) {
  if (store.status(join_path(folder, kPipeline)).kind != FileKind::kFile) return;
  std::vector<FoundCheckpoint> models;
  for (const std::string& name : store.list(folder)) {
    const std::string path = join_path(folder, name);
    if (name.starts_with('.') || !is_folder_at(store, path)) continue;
    if (!sets_of_loader(store, path, store.list(path)).empty()) {
      models.push_back({FoundCheckpoint::Kind::kFolder, path});
    }
  }
  if (models.size() > 1) refuse_several(folder, models);
}

/// Files of tensors that no loader opens by their names, such as the output of an earlier run, beside checkpoints.
std::vector<FoundCheckpoint> with_loose_files(const SourceStore& store, const std::string& folder,
                                              std::vector<FoundCheckpoint> found) {
  for (const std::string& name : store.list(folder)) {
    const std::string path = join_path(folder, name);
    const bool is_one =
        !name.starts_with('.') && name.ends_with(".safetensors") && kSafetensorsFormat.detect({&store, {path}});
    if (is_one) found.push_back({FoundCheckpoint::Kind::kFile, path});
  }
  return found;
}

/// One of the checkpoints in a folder.
TakenSource take_one(const SourceStore& store, const Source& folder, std::vector<FoundCheckpoint> below) {
  const std::vector<FoundCheckpoint> found = model_candidates(folder, std::move(below));
  if (found.empty()) detect_format(folder);  // Throws, as for every verb: nothing there is a model.
  if (found.size() != 1) refuse_several(folder.paths.front(), found);
  TakenSource taken = found_below(found.front());
  if (found.front().kind != FoundCheckpoint::Kind::kFolder) return taken;
  std::optional<TakenSource> loaded = take_loaded(store, found.front().path);
  if (!loaded) return taken;
  loaded->is_found = true;
  return *std::move(loaded);
}

/// True if the folder's file `latest`, as DeepSpeed and others write it, names a different save than `found`. That one
/// may be lost, so an older one must not take its place in silence.
bool contradicts_latest(const SourceStore& store, const std::string& folder, const FoundCheckpoint& found) {
  constexpr std::int64_t kMostBytes = 4096;
  const std::string latest = join_path(folder, "latest");
  const FileStatus status = store.status(latest);
  if (status.kind != FileKind::kFile || status.bytes > kMostBytes) return false;
  const std::vector<std::byte> bytes = read_whole(*store.open(latest), kMostBytes);
  std::string name(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  name.erase(name.find_last_not_of(" \t\r\n") + 1);
  const std::string named = join_path(folder, name);
  return name.empty() || (found.path != named && !found.path.starts_with(named + "/"));
}

/// The only checkpoint in the folder that was named; otherwise what was named.
TakenSource take_checkpoint(const Session& session, const ReadRequest& options) {
  TakenSource taken = as_named(options);
  try {
    const std::optional<std::string> folder = named_folder(session, options);
    if (!folder) return taken;
    // A manifest belongs to the whole folder, so no file in it is the checkpoint.
    const std::string manifest = join_path(*folder, kManifestName);
    if (source_store(session).status(manifest).kind != FileKind::kAbsent) return taken;
    const Recognised recognised = recognise({&source_store(session), {*folder}});
    if (recognised.format != nullptr || recognised.below.size() != 1) return taken;
    if (contradicts_latest(source_store(session), *folder, recognised.below.front())) return taken;
    return found_below(recognised.below.front());
  } catch (const Error& error) {
    if (error.code() == ErrorCode::kResource || error.code() == ErrorCode::kPeer) throw;
    return taken;  // Opening it fails as well, and the verb says what it knows then.
  }
}

}  // namespace

void take_sources(const Session& session, Request& options) {
  std::vector<std::string>& paths = options.source.paths;
  const std::string_view verb = options.verb->name;
  const bool takes_each = verb == kComparing;
  const bool finds_itself = std::ranges::find(kFindThemselves, verb) != kFindThemselves.end();
  if (finds_itself || paths.empty() || !options.source.from.empty() || (paths.size() > 1 && !takes_each)) return;
  on_all_ranks(session, "find", [&] {
    for (std::string& path : paths) {
      ReadRequest one = options.source;
      one.paths = {path};
      const TakenSource taken = take_checkpoint(session, one);
      if (!taken.is_found || (takes_each && taken.paths.size() > 1)) continue;
      if (is_rank_zero(session)) {
        note(session, fmt::format("{}: took {}, the only checkpoint in {}", verb, taken.label, path));
      }
      if (takes_each) {
        path = taken.paths.front();
      } else {
        paths = taken.paths;
        return;
      }
    }
  });
}

TakenSource take_model(const Session& session, const ReadRequest& options) {
  check_exists(session, options);
  const std::optional<std::string> folder = named_folder(session, options);
  if (!folder) return as_named(options);
  const SourceStore& store = source_store(session);
  const Source source{&store, {*folder}};
  if (const std::vector<FoundCheckpoint> models = numbered_models(source); !models.empty()) {
    refuse_several(*folder, models);
  }
  refuse_pipeline(store, *folder);
  if (std::optional<TakenSource> loaded = take_loaded(store, *folder)) return *std::move(loaded);
  const Recognised recognised = recognise(source);
  if (recognised.format == nullptr) return take_one(store, source, recognised.below);
  TakenSource taken = as_named(options);
  taken.place = *folder;
  if (recognised.format != &kSafetensorsFormat) return taken;
  std::vector<FoundCheckpoint> below = checkpoints_below(source);
  const std::vector<FoundCheckpoint> loose = with_loose_files(store, *folder, {});
  if (below.empty() && loose.size() == 1) taken.paths = loose.front().paths();
  if (below.empty() || loose.empty()) return taken;
  return take_one(store, source, with_loose_files(store, *folder, std::move(below)));
}

}  // namespace shard::app
