#include "apps/shardctl/source/manifest_choice.h"

#include <fmt/format.h>

#include <algorithm>

#include "libshard/core/error.h"
#include "libshard/io/paths.h"

namespace shard::app {
namespace {

constexpr std::int64_t kMaxManifestBytes = std::int64_t{1} << 28;  // Of 25 TB.

void keep_files(StatedFiles& stated, const std::vector<std::string>& paths) {
  std::vector<ManifestFile> kept;
  for (const std::string& path : paths) {
    const ManifestFile* file = stated.manifest.find(base_name(path));
    if (file == nullptr) {
      throw Error(ErrorCode::kCorruption, fmt::format("the manifest has no entry for '{}'", base_name(path)))
          .in_file(path)
          .of_kind(FindingKind::kExtraFile)
          .hint("pass this checkpoint's manifest with --against");
    }
    kept.push_back(*file);
  }
  stated.is_part = kept.size() < stated.manifest.files.size();
  stated.manifest.files = std::move(kept);
}

}  // namespace

std::string manifest_beside(const SourceStore& store, const std::vector<std::string>& paths) {
  if (paths.size() != 1) return {};
  const bool is_folder = store.status(paths[0]).kind == FileKind::kFolder;
  const std::string path =
      is_folder ? join_path(paths[0], kManifestName) : std::string(paths[0]).append(kManifestSuffix);
  return store.status(path).kind == FileKind::kFile ? path : std::string();
}

std::string manifest_bytes(const SourceStore& store, const std::string& path) {
  const std::vector<std::byte> bytes = read_whole(*store.open(path), kMaxManifestBytes);
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

StatedFiles read_manifest(const SourceStore& store, const std::string& manifest,
                          const std::vector<std::string>& paths) {
  StatedFiles stated{parse_manifest(manifest_bytes(store, manifest), manifest), &store, {}, {}};
  const bool is_folder = paths.size() == 1 && store.status(paths[0]).kind == FileKind::kFolder;
  if (is_folder) {
    stated.folder = paths[0];
  } else if (paths.size() == 1 && stated.manifest.files.size() == 1) {
    stated.file = paths[0];
  } else {
    keep_files(stated, paths);
    if (paths.size() == 1) stated.file = paths[0];
    stated.folder = paths.size() == 1 ? std::string() : parent_path(paths[0]);
  }
  return stated;
}

}  // namespace shard::app
