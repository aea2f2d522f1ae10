#include "libshard/manifest/source_identity.h"

#include <algorithm>
#include <cstddef>

#include "libshard/core/error.h"
#include "libshard/core/python_text.h"
#include "libshard/core/utf8.h"
#include "libshard/io/paths.h"

namespace shard {

namespace {

constexpr std::int64_t kEnd = 4096;
constexpr std::size_t kMostFolders = 16;  ///< The limit on nested folders.

/// Adds a file, or all files of a folder. `above` are the folders that contain it: a link to one of them adds nothing.
void add(const SourceStore& store, const std::string& path, const std::string& name, std::vector<FileStatus>& above,
         std::vector<SourceFile>& files) {
  const FileStatus status = store.status(path);
  if (status.kind == FileKind::kFile) files.push_back(identify(*store.open(path), name));
  if (status.kind != FileKind::kFolder || above.size() == kMostFolders) return;
  const auto is_this = [&](const FileStatus& folder) {
    return status.identity().is_known() && is_same(folder, status);
  };
  if (std::ranges::any_of(above, is_this)) return;
  above.push_back(status);
  for (const std::string& entry : store.list(path)) {
    add(store, join_path(path, entry), name.empty() ? entry : join_path(name, entry), above, files);
  }
  above.pop_back();
}

}  // namespace

SourceFile identify(const RandomReader& file, const std::string& name) {
  const std::int64_t bytes = file.size(), end = std::min(bytes, kEnd);
  std::vector<std::byte> ends(static_cast<std::size_t>(std::min(bytes, 2 * kEnd)));
  file.read_at(0, std::span(ends).first(static_cast<std::size_t>(end)));
  const auto rest = std::span(ends).subspan(static_cast<std::size_t>(end));
  if (!rest.empty()) file.read_at(bytes - std::ssize(rest), rest);
  Hasher hasher(HashAlgorithm::kXxh3_128);
  hasher.update(ends);
  // A manifest is JSON, which stores only UTF-8.
  return {is_utf8(name) ? name : python_escaped(name, true, '"'), bytes, file.modified_ns(), hasher.finish_hex()};
}

std::vector<SourceFile> identify_source(const SourceStore& store, const std::vector<std::string>& paths) {
  std::vector<SourceFile> files;
  std::vector<FileStatus> above;
  for (const std::string& path : paths) {
    const bool is_folder = store.is_folder(path);
    add(store, path, is_folder ? std::string() : base_name(path), above, files);
  }
  std::ranges::stable_sort(files, {}, &SourceFile::path);
  return files;
}

}  // namespace shard
