#include "apps/shardctl/render/json_parts.h"

#include "apps/shardctl/session/versions.h"

namespace shard::app {

void write_files(JsonWriter& json, std::span<const File> files) {
  json.key("files"), json.begin_array();
  for (const File& file : files) {
    json.line(2);
    json.begin_object();
    json.key("path"), json.string(file.path);
    json.key("bytes"), json.number(file.bytes);
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
