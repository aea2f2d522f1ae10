#include "libshard/manifest/manifest.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>

#include "libshard/core/error.h"
#include "libshard/core/json_writer.h"
#include "libshard/io/paths.h"
#include "libshard/io/small_text.h"
#include "libshard/manifest/read_json.h"

namespace shard {

namespace {

void write_source(const Manifest& manifest, JsonWriter& out) {
  out.key("source"), out.begin_object();
  out.key("digest"), out.string(source_digest(manifest.source));
  out.key("files"), out.object_lines(2, manifest.source, [&](const SourceFile& file) {
    out.key("path"), out.string(file.path);
    out.key("bytes"), out.number(file.bytes);
    out.key("modified_ns"), out.number(file.modified_ns);
    out.key("ends"), out.string(file.ends);
  });
  out.end_object();
}

void write_files(const Manifest& manifest, JsonWriter& out) {
  const std::size_t digits = hex_digits(manifest.algorithm);
  out.key("files"), out.object_lines(2, manifest.files, [&](const ManifestFile& file) {
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
  });
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

using nlohmann::json;

/// The text around the sum, as manifest_text writes it. It ends the document, and the sum covers all bytes before it.
constexpr std::string_view kSumBegin = "\n \"sum\": \"", kSumEnd = "\"\n}\n";

constexpr int kManifestDepth = 8;

Error bad_manifest(const std::string& message) { return bad_document("manifest", message); }

const json& member(const json& object, const char* key) {
  const auto found = object.is_object() ? object.find(key) : object.end();
  if (found == object.end()) throw bad_manifest(fmt::format("key '{}' is missing", key));
  return *found;
}

std::string text_of(const json& object, const char* key) {
  const json& value = member(object, key);
  if (!value.is_string()) throw bad_manifest(fmt::format("'{}' is not a string", key)).found(value.type_name());
  return value.get<std::string>();
}

std::int64_t number_of(const json& object, const char* key) {
  const json& value = member(object, key);
  if (value.is_number_integer() && value.get<std::int64_t>() >= 0) return value.get<std::int64_t>();
  throw bad_manifest(fmt::format("'{}' is not a size", key)).found(value.dump());
}

const json& list_of(const json& object, const char* key) {
  const json& value = member(object, key);
  if (!value.is_array()) throw bad_manifest(fmt::format("'{}' is not a list", key)).found(value.type_name());
  return value;
}

bool is_hex(std::string_view text, std::size_t digits) {
  return text.size() == digits && text.find_first_not_of("0123456789abcdef") == std::string_view::npos;
}

/// Reads a hash that this program wrote, with any of the block algorithms.
std::string hash_of(const json& object, const char* key) {
  std::string text = text_of(object, key);
  if (is_hex(text, hex_digits(HashAlgorithm::kXxh3_128))) return text;
  throw bad_manifest(fmt::format("'{}' is not a hash", key)).expected("32 hexadecimal digits").found(text);
}

int rank_of(const json& file) {
  const std::int64_t rank = number_of(file, "rank");
  if (rank <= std::numeric_limits<int>::max()) return static_cast<int>(rank);
  throw bad_manifest("'rank' is not a rank").found(rank);
}

/// Reads a file's entry. Its number of blocks must follow from its size, and `hash` from the blocks.
ManifestFile file_of(const json& value, HashAlgorithm algorithm) {
  ManifestFile file{text_of(value, "path"), number_of(value, "bytes"), {}};
  if (value.contains("rank")) file.rank = rank_of(value);
  const json& blocks = list_of(value, "blocks");
  if (std::ssize(blocks) != block_count(file.bytes)) {
    throw bad_manifest(fmt::format("'{}' of {} bytes has {} blocks", file.path, file.bytes, blocks.size()))
        .expected(block_count(file.bytes))
        .found(std::ssize(blocks));
  }
  file.blocks.reserve(blocks.size() * hex_digits(algorithm));
  for (const json& block : blocks) {
    if (!block.is_string() || !is_hex(block.get_ref<const std::string&>(), hex_digits(algorithm))) {
      throw bad_manifest(fmt::format("a block of '{}' has no {} hash", file.path, hash_name(algorithm)));
    }
    file.blocks += block.get_ref<const std::string&>();
  }
  if (list_hash(file, algorithm) == text_of(value, "hash")) return file;
  throw bad_manifest(fmt::format("the hash of the blocks of '{}' is not that of their list", file.path))
      .of_kind(FindingKind::kHashMismatch);
}

HashAlgorithm algorithm_of(const json& document) {
  const std::string name = text_of(document, "algorithm");
  if (name == "xxh3_128" || name == "sha256") return parse_hash_algorithm(name);
  throw Error(ErrorCode::kUnsupported, fmt::format("manifest: unknown hash algorithm '{}'", name));
}

/// A manifest with a different size of blocks could not be compared, so it counts as a different schema.
void check_schema(const json& document) {
  const std::string schema = text_of(document, "schema");
  if (schema == "shardctl.manifest/1" && number_of(document, "block_bytes") == kManifestBlock) return;
  throw Error(ErrorCode::kUnsupported, fmt::format("manifest: '{}' is not a schema that this version knows", schema))
      .expected("shardctl.manifest/1, blocks of 4194304 bytes");
}

/// Checks the hash at the end of the text, which covers all text before it.
void check_sum(std::string_view text) {
  const std::size_t digits = hex_digits(HashAlgorithm::kXxh3_128);
  const std::size_t tail = kSumBegin.size() + digits + kSumEnd.size();
  Error changed = bad_manifest("it was changed after it was written").of_kind(FindingKind::kHashMismatch);
  if (text.size() < tail || !text.ends_with(kSumEnd) || !text.substr(text.size() - tail).starts_with(kSumBegin)) {
    throw changed.because("its last line is not the hash of the lines before it");
  }
  const std::string_view summed = text.substr(0, text.size() - tail + 1);  // Includes the newline.
  Hasher hasher(HashAlgorithm::kXxh3_128);
  hasher.update(summed);
  const std::string found = hasher.finish_hex();
  const std::string_view stated = text.substr(text.size() - tail + kSumBegin.size(), digits);
  if (found != stated) throw changed.expected(stated).found(found);
}

Manifest manifest_of(const json& document) {
  check_schema(document);
  Manifest manifest;
  manifest.tool = text_of(document, "tool");
  manifest.algorithm = algorithm_of(document);
  manifest.format = text_of(document, "format");
  const json& layout = member(document, "layout");
  if (!member(layout, "world_size").is_null()) manifest.world_size = number_of(layout, "world_size");
  manifest.tensors = number_of(layout, "tensors");
  manifest.objects = number_of(layout, "objects");
  manifest.chunks = number_of(layout, "chunks");
  manifest.layout = hash_of(layout, "digest");
  manifest.options = hash_of(document, "options");
  for (const json& file : list_of(member(document, "source"), "files")) {
    manifest.source.push_back(
        {text_of(file, "path"), number_of(file, "bytes"), number_of(file, "modified_ns"), hash_of(file, "ends")});
  }
  for (const json& file : list_of(document, "files")) manifest.files.push_back(file_of(file, manifest.algorithm));
  std::set<std::string_view> paths;
  for (const ManifestFile& file : manifest.files) {
    if (!paths.insert(file.path).second) throw bad_manifest(fmt::format("it names '{}' twice", file.path));
  }
  return manifest;
}

}  // namespace

const ManifestFile* Manifest::find(std::string_view path) const {
  const auto found = std::ranges::find(files, path, &ManifestFile::path);
  return found == files.end() ? nullptr : &*found;
}

std::string source_digest(const std::vector<SourceFile>& files) {
  Hasher hasher(HashAlgorithm::kXxh3_128);
  for (const SourceFile& file : files) {
    hasher.update(fmt::format("{}\t{}\t{}\t{}\n", file.path, file.bytes, file.modified_ns, file.ends));
  }
  return hasher.finish_hex();
}

/// Hashes the digits of the block hashes, not their bytes, so that other programs can repeat it from the text.
std::string list_hash(const ManifestFile& file, HashAlgorithm algorithm) {
  Hasher hasher(algorithm);
  hasher.update(file.blocks);
  return hasher.finish_hex();
}

Manifest parse_manifest(std::string_view text, const std::string& file) {
  try {
    check_sum(text);
    return manifest_of(read_json(text, "manifest", kManifestDepth));
  } catch (Error& error) {
    throw error.in_file(file);
  } catch (const json::exception& error) {  // A number in the text exceeds the range of integers.
    throw bad_manifest("it contains an impossible value").because(error.what()).in_file(file);
  }
}

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
  hasher.update(text);  // The text before the line with the sum.
  text += ' ';
  out.key("sum"), out.string(hasher.finish_hex());
  out.end_line();
  out.end_object();
  out.end_line();
  return text;
}

namespace {

constexpr std::int64_t kMaxManifestBytes = std::int64_t{1} << 28;  // For 25 TB with XXH3-128, 15 TB with SHA-256.

}  // namespace

std::string manifest_beside(const SourceStore& store, const std::vector<std::string>& paths) {
  if (paths.size() != 1) return {};
  const bool is_folder = store.is_folder(paths[0]);
  const std::string path =
      is_folder ? join_path(paths[0], kManifestName) : std::string(paths[0]).append(kManifestSuffix);
  return store.is_file(path) ? path : std::string();
}

std::string manifest_bytes(const SourceStore& store, const std::string& path) {
  return whole_text(*store.open(path), kMaxManifestBytes);
}

}  // namespace shard
