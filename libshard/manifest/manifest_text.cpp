#include <string>

#include "libshard/core/json_writer.h"
#include "libshard/manifest/manifest.h"

namespace shard {

namespace {

void write_source(const Manifest& manifest, JsonWriter& out) {
  out.key("source"), out.begin_object();
  out.key("digest"), out.string(source_digest(manifest.source));
  out.key("files"), out.begin_array();
  for (const SourceFile& file : manifest.source) {
    out.line(2);
    out.begin_object();
    out.key("path"), out.string(file.path);
    out.key("bytes"), out.number(file.bytes);
    out.key("modified_ns"), out.number(file.modified_ns);
    out.key("ends"), out.string(file.ends);
    out.end_object();
  }
  out.end_array();
  out.end_object();
}

void write_files(const Manifest& manifest, JsonWriter& out) {
  const std::size_t digits = hex_digits(manifest.algorithm);
  out.key("files"), out.begin_array();
  for (const ManifestFile& file : manifest.files) {
    out.line(2);
    out.begin_object();
    out.key("path"), out.string(file.path);
    out.key("bytes"), out.number(file.bytes);
    if (file.rank) out.key("rank"), out.number(*file.rank);
    out.key("hash"), out.string(list_hash(file, manifest.algorithm));
    out.key("blocks"), out.begin_array();
    for (std::size_t at = 0; at < file.blocks.size(); at += digits) {
      out.line(3);
      out.string(std::string_view(file.blocks).substr(at, digits));
    }
    out.end_array();
    out.end_object();
  }
  out.end_array();
}

void write_layout(const Manifest& manifest, JsonWriter& out) {
  out.key("layout"), out.begin_object();
  out.key("world_size"), manifest.world_size ? out.number(*manifest.world_size) : out.null();
  out.key("tensors"), out.number(manifest.tensors);
  out.key("objects"), out.number(manifest.objects);
  out.key("chunks"), out.number(manifest.chunks);
  out.key("digest"), out.string(manifest.layout);
  out.end_object();
}

}  // namespace

std::string manifest_text(const Manifest& manifest) {
  std::string text;
  JsonWriter out(text, kPythonJson);
  out.begin_object();
  out.line(1);
  out.key("schema"), out.string("shardctl.manifest/1");
  out.key("tool"), out.string(manifest.tool);
  out.key("algorithm"), out.string(hash_name(manifest.algorithm));
  out.key("block_bytes"), out.number(kManifestBlock);
  out.line(1);
  out.key("format"), out.string(manifest.format);
  write_layout(manifest, out);
  out.line(1);
  out.key("options"), out.string(manifest.options);
  out.line(1);
  write_source(manifest, out);
  out.line(1);
  write_files(manifest, out);
  out.line(0);
  Hasher hasher(HashAlgorithm::kXxh3_128);
  hasher.update(text);  // Up to the line of the sum.
  text += ' ';
  out.key("sum"), out.string(hasher.finish_hex());
  out.end_line();
  out.end_object();
  out.end_line();
  return text;
}

}  // namespace shard
