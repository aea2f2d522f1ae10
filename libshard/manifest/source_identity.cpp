#include "libshard/manifest/source_identity.h"

#include <algorithm>

#include "libshard/core/error.h"
#include "libshard/core/python_text.h"
#include "libshard/core/utf8.h"
#include "libshard/io/paths.h"

namespace shard {

namespace {

constexpr std::int64_t kEnd = 4096;
constexpr int kMostFolders = 16;  ///< The limit on nested folders.

void add(const SourceStore& store, const std::string& path, const std::string& name, int depth,
         std::vector<SourceFile>& files) {
  const FileStatus status = store.status(path);
  if (status.kind == FileKind::kFile) files.push_back(identify(*store.open(path), name));
  if (status.kind != FileKind::kFolder || depth == kMostFolders) return;
  for (const std::string& entry : store.list(path)) {
    add(store, join_path(path, entry), name.empty() ? entry : join_path(name, entry), depth + 1, files);
  }
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
  for (const std::string& path : paths) {
    const bool is_folder = store.is_folder(path);
    add(store, path, is_folder ? std::string() : base_name(path), 0, files);
  }
  std::ranges::stable_sort(files, {}, &SourceFile::path);
  return files;
}

}  // namespace shard
