#include "apps/shardctl/render/json_parts.h"

#include "apps/shardctl/session/versions.h"

namespace shard::app {

namespace {

void write_group(JsonWriter& json, const RankGroup& group) {
  json.key("rank"), json.number(group.rank);
  if (group.world_size) json.key("world_size"), json.number(*group.world_size);
  if (!group.local_rank) return;
  json.key("local_rank"), json.number(*group.local_rank);
  json.key("local_world_size"), json.number(*group.local_world_size);
}

}  // namespace

void write_files(JsonWriter& json, std::span<const File> files, std::span<const std::optional<RankGroup>> groups) {
  json.key("files"), json.object_lines(2, files, [&](const File& file) {
    json.key("path"), json.string(file.path);
    json.key("bytes"), json.number(file.bytes);
    const auto i = static_cast<std::size_t>(&file - files.data());
    if (i < groups.size() && groups[i]) write_group(json, *groups[i]);
  });
}

void write_libraries(JsonWriter& json) {
  json.key("libraries"), json.begin_object();
  for (const auto& [name, version] : library_versions()) json.key(name), json.string(version);
  json.end_object();
}

}  // namespace shard::app
