#include "formats/megatron_dist/save_folder.h"

#include <fmt/format.h>

#include <algorithm>

#include "formats/megatron_tracker.h"
#include "formats/parts/json/json_cursor.h"
#include "libshard/core/ascii.h"
#include "libshard/core/error.h"
#include "libshard/core/name_pattern.h"
#include "libshard/io/paths.h"
#include "libshard/io/small_text.h"

namespace shard::megatron_dist {
namespace {

constexpr std::int64_t kMaxConfigBytes = 64 << 10;

/// The versions are stored as the text of their JSON values; empty if missing.
struct Config {
  bool is_torch_dist = false, names_common = false;
  std::string version{}, common_backend{}, common_version{};
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
    } else if (key == "sharded_backend_version") {
      config.version = json.raw_value();
    } else if (key == "common_backend") {
      config.names_common = true;
      config.common_backend = json.raw_value();
    } else if (key == "common_backend_version") {
      config.common_version = json.raw_value();
    } else {
      json.skip();
    }
  }
  json.finish();
  return config;
}

/// Megatron-Core has only written version 1, and assumes 1 if none is given. Any other integer is an unknown version.
void check_version(std::string_view key, const std::string& found) {
  if (found.empty() || found == "1") return;
  const bool is_number = std::ranges::all_of(found, is_digit);
  throw Error(is_number ? ErrorCode::kUnsupported : ErrorCode::kCorruption,
              is_number ? fmt::format("this build does not know version {} of Megatron-Core's checkpoints", found)
                        : fmt::format("{} is not a version", key))
      .in_file(std::string(kConfigName))
      .of_kind(FindingKind::kBadHeader)
      .expected(fmt::format("\"{}\": 1", key))
      .found(found);
}

}  // namespace

void check_versions(const SourceStore& store, const std::string& folder) {
  const Config config = read_config(store, folder);
  check_version("sharded_backend_version", config.version);
  check_version("common_backend_version", config.common_version);
  if (config.common_backend.empty() || config.common_backend == "\"torch\"") return;
  throw Error(ErrorCode::kUnsupported, "this build does not know how the common data are stored")
      .in_file(std::string(kConfigName))
      .of_kind(FindingKind::kBadHeader)
      .expected("\"common_backend\": \"torch\"")
      .found(config.common_backend);
}

bool is_checkpoint(const SourceStore& store, const std::string& folder) {
  try {
    return read_config(store, folder).is_torch_dist;
  } catch (const Error& error) {
    if (!is_about_content(error)) throw;
    return false;  // A metadata.json of a different program.
  }
}

bool names_common(const SourceStore& store, const std::string& folder) {
  return read_config(store, folder).names_common;
}

std::optional<std::int64_t> iteration_in_name(const std::string& folder) {
  static const NamePattern kIteration("iter_{number}");
  const auto number = kIteration.read<1>(base_name(folder));
  return number ? std::optional(number->front()) : std::nullopt;
}

std::string find_checkpoint(const SourceStore& store, const std::string& path) {
  if (!store.is_folder(path)) return {};
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
