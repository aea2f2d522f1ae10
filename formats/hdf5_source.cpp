#include "formats/hdf5_source.h"

#include <algorithm>
#include <array>

#include "formats/parts/zip/zip.h"
#include "libshard/core/error.h"
#include "libshard/io/paths.h"

namespace shard {

namespace {

constexpr std::string_view kSignature = "\x89HDF\r\n\x1a\n";

bool has_signature_at(const RandomReader& file, std::int64_t offset) {
  std::array<char, kSignature.size()> found{};
  if (offset + std::ssize(found) > file.size()) return false;
  file.read_at(offset, std::as_writable_bytes(std::span(found)));
  return std::string_view(found.data(), found.size()) == kSignature;
}

/// Searches the signature. The specification permits a superblock at 0, 512, 1024, ... without a limit, but user blocks
/// are small.
bool is_hdf5_file(const SourceStore& store, const std::string& path) {
  if (!store.is_file(path)) return false;
  const auto file = store.open(path);
  if (has_signature_at(*file, 0)) return true;
  constexpr std::int64_t kFirst = 512, kLast = 1 << 20;
  for (std::int64_t offset = kFirst; offset <= kLast; offset *= 2) {
    if (has_signature_at(*file, offset)) return true;
  }
  return false;
}

bool is_hdf5_folder(const SourceStore& store, const std::string& folder) {
  return std::ranges::any_of(store.list(folder), [&](const std::string& name) {
    return is_hdf5_name(name) && is_hdf5_file(store, join_path(folder, name));
  });
}

}  // namespace

bool is_hdf5_name(std::string_view name) { return ends_in_any(name, kHdf5Suffixes) && !name.starts_with('.'); }

bool is_keras_index(const SourceStore& store, const std::string& path) {
  const bool is_named_so = path.ends_with(kKerasIndexSuffix) || path.ends_with(kTensorFlowIndexSuffix);
  return is_named_so && store.is_file(path);
}

std::optional<KerasWeights> keras_weights_in(const std::shared_ptr<const RandomReader>& file) {
  try {
    const zip::ZipReader zip(file, 0, file->size());
    const auto found = std::ranges::find(zip.records(), kKerasWeightsName, &zip::Record::name);
    if (found == zip.records().end() || found->method != 0) return std::nullopt;
    return KerasWeights{zip.data_offset(*found), found->bytes};
  } catch (const Error& error) {
    if (!is_about_content(error)) throw;
    return std::nullopt;  // It is not a zip, or a damaged one.
  }
}

bool is_keras_archive(const SourceStore& store, const std::string& path) {
  if (!path.ends_with(kKerasArchiveSuffix) || !store.is_file(path)) return false;
  return keras_weights_in(store.open(path)).has_value();
}

bool is_hdf5_source(const Source& source) {
  const SourceStore& store = *source.store;
  if (source.paths.size() == 1) {
    const std::string& path = source.paths.front();
    if (is_one_folder(source)) return is_hdf5_folder(store, path);
    return is_hdf5_file(store, path) || is_keras_index(store, path) || is_keras_archive(store, path);
  }
  return std::ranges::all_of(source.paths, [&](const std::string& path) { return is_hdf5_file(store, path); });
}

}  // namespace shard
