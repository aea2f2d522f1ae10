#include "apps/shardctl/render/json_parts.h"

#include "apps/shardctl/session/versions.h"

namespace shard::app {

namespace {

void write_group(JsonWriter& json, const RankGroup& group) {
  const auto write = [&](const char* key, const std::optional<std::int64_t>& number) {
    json.key(key);
    if (number) {
      json.number(*number);
    } else {
      json.null();
    }
  };
  json.key("rank"), json.number(group.rank);
  if (!group.world_size) return;
  write("world_size", group.world_size);
  write("local_rank", group.local_rank);
  write("local_world_size", group.local_world_size);
}

}  // namespace

void write_files(JsonWriter& json, std::span<const File> files, std::span<const std::optional<RankGroup>> groups) {
  json.key("files"), json.begin_array();
  for (std::size_t i = 0; i < files.size(); ++i) {
    json.line(2);
    json.begin_object();
    json.key("path"), json.string(files[i].path);
    json.key("bytes"), json.number(files[i].bytes);
    if (i < groups.size() && groups[i]) write_group(json, *groups[i]);
    json.end_object();
  }
  json.end_array();
}

void write_texts(JsonWriter& json, std::string_view key, std::span<const std::string> texts) {
  json.key(key), json.begin_array();
  for (const std::string& text : texts) json.string(text);
  json.end_array();
}

void write_libraries(JsonWriter& json) {
  json.key("libraries"), json.begin_object();
  for (const auto& [name, version] : library_versions()) json.key(name), json.string(version);
  json.end_object();
}

}  // namespace shard::app
