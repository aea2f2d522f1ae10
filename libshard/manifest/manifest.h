/// \file Manifest (`shardctl.manifest/1`): the record of a finished output. It has the files with a hash for each block
///   of 4 MiB, the tool that wrote them, and their source. docs/schemas.md defines the document.
///
/// File names in it are relative, and it contains no absolute path and no host name. Its last field is a hash of all
/// text before it, so that a changed manifest is noticed.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "libshard/core/checked.h"
#include "libshard/core/digest.h"
#include "libshard/io/output.h"
#include "libshard/io/source_store.h"

namespace shard {

inline constexpr std::int64_t kManifestBlock = kOutputBlock;
/// The name of a folder's manifest, which is in the folder itself.
inline constexpr std::string_view kManifestName = "shardctl.manifest.json";
/// The suffix of a single file's manifest, which is next to the file: the file's name and this suffix.
inline constexpr std::string_view kManifestSuffix = kCompanionSuffix;

/// The number of blocks in a file of this size.
constexpr std::int64_t block_count(std::int64_t bytes) { return ceil_div(bytes, kManifestBlock); }
/// The number of characters of a hash in hexadecimal.
constexpr std::size_t hex_digits(HashAlgorithm algorithm) { return algorithm == HashAlgorithm::kSha256 ? 64 : 32; }

struct ManifestFile {
  std::string path;  ///< The path relative to the folder. For a single file, its name.
  std::int64_t bytes = 0;
  std::string blocks;         ///< The concatenated hashes of the file's blocks, in hexadecimal.
  std::optional<int> rank{};  ///< The rank whose output folder has the file; empty if all write to one.

  std::string_view block(std::int64_t index, HashAlgorithm algorithm) const {
    const std::size_t digits = hex_digits(algorithm);
    return std::string_view(blocks).substr(static_cast<std::size_t>(index) * digits, digits);
  }
};

/// A file of the source, with the facts that can be found without reading the whole file.
struct SourceFile {
  /// The path relative to the source. For a single file, its name. If that is not UTF-8, its bytes past ASCII as \xNN.
  std::string path;
  std::int64_t bytes = 0;
  std::int64_t modified_ns = 0;  ///< Nanoseconds since 1970, or 0 if unknown.
  std::string ends;              ///< The XXH3-128 of the first and last 4 KiB.

  friend bool operator==(const SourceFile&, const SourceFile&) = default;
};

struct Manifest {
  std::string tool;  ///< For example "shardctl 0.2.0".
  HashAlgorithm algorithm = HashAlgorithm::kXxh3_128;
  std::string format;
  std::optional<std::int64_t> world_size;
  std::int64_t tensors = 0, objects = 0, chunks = 0;
  std::string layout;   ///< A digest of the names, dtypes, shapes and boxes of all chunks.
  std::string options;  ///< A digest of all options of the request.
  std::vector<SourceFile> source;
  std::vector<ManifestFile> files;

  const ManifestFile* find(std::string_view path) const;
};

/// Combines the source's files into one digest.
std::string source_digest(const std::vector<SourceFile>& files);
/// Hashes a file's list of block hashes.
std::string list_hash(const ManifestFile& file, HashAlgorithm algorithm);

/// The text of the document. Its length does not depend on the hashes' values, so it is known before them.
std::string manifest_text(const Manifest& manifest);

/// Parses and checks a manifest.
/// \throws Error kCorruption  kind bad_header; kind hash_mismatch if the text was changed after it was written
Manifest parse_manifest(std::string_view text, const std::string& file);

/// The path of the manifest in the one folder in `paths`, or next to the one file. Empty if there is none.
std::string manifest_beside(const SourceStore& store, const std::vector<std::string>& paths);

/// The text of a manifest. \throws Error kNotFound; kCorruption  it is larger than any manifest can be
std::string manifest_bytes(const SourceStore& store, const std::string& path);

}  // namespace shard
