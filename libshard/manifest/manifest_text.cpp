#include <string>

#include "libshard/core/json_writer.h"
#include "libshard/manifest/manifest.h"

namespace shard {

namespace {

void write_source(const Manifest& manifest, JsonWriter& json) {
  json.key("source"), json.begin_object();
  json.key("digest"), json.string(source_digest(manifest.source));
  json.key("files"), json.begin_array();
  for (const SourceFile& file : manifest.source) {
    json.line(2);
    json.begin_object();
    json.key("path"), json.string(file.path);
    json.key("bytes"), json.number(file.bytes);
    json.key("modified_ns"), json.number(file.modified_ns);
    json.key("ends"), json.string(file.ends);
    json.end_object();
  }
  json.end_array();
  json.end_object();
}

void write_files(const Manifest& manifest, JsonWriter& json) {
  const std::size_t digits = hex_digits(manifest.algorithm);
  json.key("files"), json.begin_array();
  for (const ManifestFile& file : manifest.files) {
    json.line(2);
    json.begin_object();
    json.key("path"), json.string(file.path);
    json.key("bytes"), json.number(file.bytes);
    if (file.rank) json.key("rank"), json.number(*file.rank);
    json.key("hash"), json.string(list_hash(file, manifest.algorithm));
    json.key("blocks"), json.begin_array();
    for (std::size_t at = 0; at < file.blocks.size(); at += digits) {
      json.line(3);
      json.string(std::string_view(file.blocks).substr(at, digits));
    }
    json.end_array();
    json.end_object();
  }
  json.end_array();
}

void write_layout(const Manifest& manifest, JsonWriter& json) {
  json.key("layout"), json.begin_object();
  json.key("world_size"), manifest.world_size ? json.number(*manifest.world_size) : json.null();
  json.key("tensors"), json.number(manifest.tensors);
  json.key("objects"), json.number(manifest.objects);
  json.key("chunks"), json.number(manifest.chunks);
  json.key("digest"), json.string(manifest.layout);
  json.end_object();
}

}  // namespace

std::string manifest_text(const Manifest& manifest) {
  std::string text;
  JsonWriter json(text, kPythonJson);
  json.begin_object();
  json.line(1);
  json.key("schema"), json.string("shardctl.manifest/1");
  json.key("tool"), json.string(manifest.tool);
  json.key("algorithm"), json.string(hash_name(manifest.algorithm));
  json.key("block_bytes"), json.number(kManifestBlock);
  json.line(1);
  json.key("format"), json.string(manifest.format);
  write_layout(manifest, json);
  json.line(1);
  json.key("options"), json.string(manifest.options);
  json.line(1);
  write_source(manifest, json);
  json.line(1);
  write_files(manifest, json);
  json.line(0);
  Hasher hasher(HashAlgorithm::kXxh3_128);
  hasher.update(text);  // Up to the line of the sum.
  text += ' ';
  json.key("sum"), json.string(hasher.finish_hex());
  json.end_line();
  json.end_object();
  json.end_line();
  return text;
}

}  // namespace shard
