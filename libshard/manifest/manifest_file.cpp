#include "libshard/manifest/manifest_file.h"

#include <cstddef>
#include <cstdint>

#include "libshard/io/paths.h"
#include "libshard/manifest/manifest.h"

namespace shard {

namespace {

constexpr std::int64_t kMaxManifestBytes = std::int64_t{1} << 28;  // The size of a manifest for 25 TB.

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

}  // namespace shard
