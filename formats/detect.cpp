#include "formats/detect.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <optional>
#include <span>

#include "formats/foreign.h"
#include "formats/plugins.h"
#include "formats/registry.h"
#include "libshard/core/error.h"
#include "libshard/core/short_text.h"
#include "libshard/core/suffixes.h"
#include "libshard/io/paths.h"

namespace shard {

namespace {

std::string shown(const Source& source) {
  return source.paths.size() == 1 ? source.paths.front() : fmt::format("{} files", source.paths.size());
}

/// The format that the names suggest. Only for a source that no format recognises; its reader then reports the problem.
const Format* format_by_names(const Source& source) {
  const bool is_folder = is_one_folder(source);
  const std::vector<std::string> names = is_folder ? source.store->list(source.paths.front()) : source.paths;
  for (const Format* format : formats()) {
    if (is_folder && !format->suffixes_tell_folders) continue;
    const auto has_suffix = [&](const std::string& name) { return ends_in_any(name, format->suffixes); };
    if (std::ranges::any_of(names, has_suffix)) return format;
  }
  return nullptr;
}

void check_exists(const Source& source) {
  if (source.paths.empty()) throw Error(ErrorCode::kInvalidArgument, "no source was named");
  for (const std::string& path : source.paths) {
    const FileKind kind = source.store->status(path).kind;
    if (kind == FileKind::kAbsent) {
      throw Error(ErrorCode::kNotFound, "no such file or folder").in_file(path).of_kind(FindingKind::kMissingFile);
    }
    if (kind == FileKind::kOther) {
      throw Error(ErrorCode::kNotFound, "is not a regular file").in_file(path);
    }
    if (kind == FileKind::kFolder && source.paths.size() > 1) {
      throw Error(ErrorCode::kInvalidArgument,
                  "a folder is a complete checkpoint and cannot be combined with other sources")
          .in_file(path);
    }
  }
}

std::vector<const Format*> fitting_formats(const Source& source) {
  std::vector<const Format*> fitting = formats();
  std::erase_if(fitting, [&](const Format* format) { return !format->detect(source); });
  std::vector<std::string_view> superseded;
  for (const Format* format : fitting) {
    superseded.insert(superseded.end(), format->supersedes.begin(), format->supersedes.end());
  }
  std::erase_if(fitting, [&](const Format* format) {
    return std::ranges::find(superseded, format->traits.name) != superseded.end();
  });
  return fitting;
}

/// False for files of a folder that a format guesses to be its own, but that are several sets.
bool is_one_set(const Source& source, const Format& format) {
  return !format.is_guessed || !is_one_folder(source) || holds_one_set(source);
}

/// The names of the formats; includes `known` if its plug-in has not been loaded.
std::vector<std::string_view> names_of(std::span<const Format* const> all, const KnownFormat* known) {
  std::vector<std::string_view> names;
  for (const Format* format : all) names.push_back(format->traits.name);
  if (known != nullptr && std::ranges::find(names, known->name) == names.end()) names.push_back(known->name);
  return names;
}

bool is_checkpoint(const Source& source, SearchFor search) {
  const bool may_be_damaged = search == SearchFor::kDamagedToo;
  try {
    if (foreign_look_alike(source)) return false;
    const std::vector<const Format*> fitting = fitting_formats(source);
    const KnownFormat* const known = known_format_of(source);
    if (fitting.empty()) return known != nullptr || (may_be_damaged && format_by_names(source) != nullptr);
    // A source of several formats is also a checkpoint: opening it names them.
    return names_of(fitting, known).size() > 1 || is_one_set(source, *fitting.front());
  } catch (const Error& error) {
    if (!is_about_content(error)) throw;
    return may_be_damaged;
  }
}

/// True if the file contains tensors, or if it cannot be read and so may contain some.
bool holds_tensors(const Source& source) {
  try {
    const std::vector<const Format*> fitting = fitting_formats(source);
    if (fitting.size() != 1) return true;
    OpenOptions how;
    how.opaque_globals = how.own_tensors = true;
    return !fitting.front()->open(source, how)->catalog().tensors.empty();
  } catch (const Error& error) {
    if (!is_about_content(error)) throw;
    return true;
  }
}

Error not_a_checkpoint(const Source& source) {
  return Error(ErrorCode::kCorruption, fmt::format("'{}' is not a checkpoint in any known format", shown(source)))
      .in_file(source.paths.front());
}

/// "; the folder contains 'config.json' and 'tokenizer.json'"; empty if the source is not one folder.
std::string content_of_folder(const Source& source) {
  if (!is_one_folder(source)) return {};
  const std::vector<std::string> names = source.store->list(source.paths.front());
  return names.empty() ? "; the folder is empty" : fmt::format("; the folder contains {}", first_names(names));
}

/// The error for a folder above checkpoints that this build cannot read, such as the steps of a run.
std::optional<Error> foreign_below(const Source& source) {
  constexpr std::size_t kMostNames = 256;
  constexpr int kMostFolders = 16;
  if (!is_one_folder(source)) return std::nullopt;
  std::vector<std::string> names = source.store->list(source.paths.front());
  names.resize(std::min(names.size(), kMostNames));
  int folders = 0;
  for (const std::string& name : names) {
    const std::string path = join_path(source.paths.front(), name);
    if (!source.store->is_folder(path)) continue;
    if (++folders > kMostFolders) break;
    try {
      if (auto error = foreign_kind({source.store, {path}})) return error;
    } catch (const Error& error) {
      if (!is_about_content(error)) throw;  // A folder that cannot be read is not one of them.
    }
  }
  return std::nullopt;
}

/// "; its file 'latest' names 'global_step9', which does not exist"; empty if this is not so.
std::string stale_latest(const Source& source) {
  const std::string& folder = source.paths.front();
  const std::optional<std::string> name = latest_name(*source.store, folder);
  if (!name) return {};
  if (name->empty()) return "; its file 'latest' is empty";
  const bool is_plain = name->find('/') == std::string::npos;
  if (!is_plain || source.store->exists(join_path(folder, *name))) return {};
  return fmt::format("; its file 'latest' names {}, which does not exist", first_names(std::array{*name}));
}

/// Throws the error for a folder above checkpoints.
[[noreturn]] void throw_above(const Source& source, std::span<const FoundCheckpoint> found) {
  Error error = not_a_checkpoint(source);
  const std::string names = suggest_each(error, source.paths.front(), found);
  throw Error(error.because(
      fmt::format("it contains {}: {}{}", found.size() == 1 ? "one" : "several", names, stale_latest(source))));
}

[[noreturn]] void throw_several(const Source& source, std::span<const std::string_view> names) {
  Error error(ErrorCode::kCorruption, fmt::format("cannot determine the format of '{}': it matches {} formats: {}",
                                                  shown(source), names.size(), fmt::join(names, ", ")));
  error.in_file(source.paths.front())
      .because(fmt::format("the folder contains the files of {}", names.size() == 2 ? "both" : "all of them"));
  for (const std::string_view name : names) error.suggest(Remedy::kReadAs, name);
  throw Error(error);
}

}  // namespace

Recognised recognise(const Source& source, SearchFor search) {
  check_exists(source);
  if (auto error = foreign_look_alike(source)) throw Error(*error);
  const std::vector<const Format*> fitting = fitting_formats(source);
  const bool is_mixed = is_one_folder(source);  // The folder may also contain files of a format that is not loaded.
  const KnownFormat* const known = fitting.empty() || is_mixed ? known_format_of(source) : nullptr;
  const std::vector<std::string_view> names = names_of(fitting, known);
  if (names.size() > 1) throw_several(source, names);
  if (fitting.empty() && known != nullptr) return {&format_named(known->name)};
  const bool is_sure = fitting.size() == 1 && (source.paths.size() > 1 || !fitting.front()->is_guessed);
  if (is_sure) return {fitting.front()};
  if (auto error = foreign_kind(source)) throw Error(*error);
  const bool is_one = fitting.size() == 1 && is_one_set(source, *fitting.front());
  const Format* const format = is_one ? fitting.front() : format_by_names(source);
  if (format != nullptr) return {format};
  if (std::vector<FoundCheckpoint> found = checkpoints_below(source, search); !found.empty())
    return {nullptr, std::move(found)};
  if (fitting.size() == 1) return {fitting.front()};
  if (auto error = foreign_below(source)) throw Error(*error);
  throw Error(not_a_checkpoint(source).because(
      fmt::format("the content matches none of: {}{}", fmt::join(format_names(), ", "), content_of_folder(source))));
}

std::vector<FoundCheckpoint> checkpoints_below(const Source& source, SearchFor search) {
  if (!is_one_folder(source)) return {};
  return find_checkpoints(
      source, [search](const Source& each) { return is_checkpoint(each, search); }, holds_tensors);
}

const Format& detect_format(const Source& source, SearchFor search) {
  const Recognised recognised = recognise(source, search);
  if (recognised.format == nullptr) throw_above(source, recognised.below);
  return *recognised.format;
}

}  // namespace shard
