#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "libshard/manifest/manifest.h"

namespace shard {

namespace {

std::string json_string(std::string_view text) {
  return nlohmann::json(text).dump(-1, ' ', true, nlohmann::json::error_handler_t::replace);
}

void add_source(const Manifest& manifest, std::string& text) {
  text += fmt::format(" \"source\": {{\"digest\": \"{}\", \"files\": [", source_digest(manifest.source));
  for (std::size_t i = 0; i < manifest.source.size(); ++i) {
    const SourceFile& file = manifest.source[i];
    text += fmt::format("{}\n  {{\"path\": {}, \"bytes\": {}, \"modified_ns\": {}, \"ends\": \"{}\"}}",
                        i == 0 ? "" : ",", json_string(file.path), file.bytes, file.modified_ns, file.ends);
  }
  text += "]},\n";
}

void add_files(const Manifest& manifest, std::string& text) {
  const std::size_t digits = hex_digits(manifest.algorithm);
  text += " \"files\": [";
  for (std::size_t i = 0; i < manifest.files.size(); ++i) {
    const ManifestFile& file = manifest.files[i];
    text += fmt::format("{}\n  {{\"path\": {}, \"bytes\": {}, ", i == 0 ? "" : ",", json_string(file.path), file.bytes);
    if (file.rank) text += fmt::format("\"rank\": {}, ", *file.rank);
    text += fmt::format("\"hash\": \"{}\", \"blocks\": [", list_hash(file, manifest.algorithm));
    for (std::size_t at = 0; at < file.blocks.size(); at += digits) {
      text.append(at == 0 ? "\n   \"" : ",\n   \"").append(file.blocks, at, digits).append("\"");
    }
    text += "]}";
  }
  text += "],\n";
}

}  // namespace

std::string manifest_text(const Manifest& manifest) {
  std::string text = fmt::format(
      "{{\n \"schema\": \"shardctl.manifest/1\", \"tool\": {}, \"algorithm\": \"{}\", \"block_bytes\": {},\n"
      " \"format\": {}, \"layout\": {{\"world_size\": {}, \"tensors\": {}, \"objects\": {}, \"chunks\": {}, "
      "\"digest\": \"{}\"}},\n"
      " \"options\": \"{}\",\n",
      json_string(manifest.tool), hash_name(manifest.algorithm), kManifestBlock, json_string(manifest.format),
      manifest.world_size ? std::to_string(*manifest.world_size) : "null", manifest.tensors, manifest.objects,
      manifest.chunks, manifest.layout, manifest.options);
  add_source(manifest, text);
  add_files(manifest, text);
  Hasher hasher(HashAlgorithm::kXxh3_128);
  hasher.update(text);
  return text + fmt::format(" \"sum\": \"{}\"\n}}\n", hasher.finish_hex());
}

}  // namespace shard
