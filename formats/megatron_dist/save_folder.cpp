#include "formats/megatron_dist/save_folder.h"

#include "formats/megatron_tracker.h"
#include "formats/parts/json/json_cursor.h"
#include "libshard/core/error.h"
#include "libshard/io/paths.h"

namespace shard::megatron_dist {
namespace {

constexpr std::int64_t kMaxConfigBytes = 64 << 10;

/// The text of a small file; empty where there is none, or a longer one.
std::string small_text(const SourceStore& store, const std::string& path, std::int64_t limit_bytes) {
  if (store.status(path).kind != FileKind::kFile) return {};
  const auto file = store.open(path);
  if (file->size() > limit_bytes) return {};
  std::string text(static_cast<std::size_t>(file->size()), '\0');
  file->read_at(0, std::as_writable_bytes(std::span(text)));
  return text;
}

struct Config {
  bool is_torch_dist = false, names_common = false;
};

Config read_config(const SourceStore& store, const std::string& folder) {
  const std::string text = small_text(store, join_path(folder, kConfigName), kMaxConfigBytes);
  if (text.empty()) return {};
  JsonCursor json(text.data(), text.data() + text.size(), std::string(kConfigName), FindingKind::kBadHeader);
  std::string_view key;
  Config config;
  bool is_first = true;
  json.enter_object();
  while (json.next_key(key, is_first)) {
    if (key == "sharded_backend") {
      config.is_torch_dist = json.string() == "torch_dist";
    } else {
      config.names_common = config.names_common || key == "common_backend";
      json.skip();
    }
  }
  json.finish();
  return config;
}

}  // namespace

bool is_checkpoint(const SourceStore& store, const std::string& folder) {
  try {
    return read_config(store, folder).is_torch_dist;
  } catch (const Error&) {
    return false;  // A file of that name, of someone else.
  }
}

bool names_common(const SourceStore& store, const std::string& folder) {
  return read_config(store, folder).names_common;
}

std::string find_checkpoint(const SourceStore& store, const std::string& path) {
  if (store.status(path).kind != FileKind::kFolder) return {};
  if (is_checkpoint(store, path)) return path;
  const std::string iteration = tracked_iteration(store, path);
  for (const std::string_view name :
       {std::string_view(iteration), std::string_view("weights"), std::string_view("model_weights")}) {
    if (name.empty()) continue;
    if (const std::string folder = join_path(path, name); is_checkpoint(store, folder)) return folder;
  }
  return {};
}

}  // namespace shard::megatron_dist
