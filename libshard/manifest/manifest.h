/// \file
/// Manifest: what a finished output was when it was written, `shardctl.manifest/1`: its files with a hash for each
/// block of 4 MiB, what wrote it, and which source it was made from. docs/schemas.md has the document.
///
/// It names files relatively and holds no path and no host. Its own last field is a hash of all that stands before, so
/// that a changed manifest is noticed too.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "libshard/core/digest.h"
#include "libshard/io/output.h"

namespace shard {

inline constexpr std::int64_t kManifestBlock = 4 << 20;
/// The manifest of a folder lies in it under this name,
inline constexpr std::string_view kManifestName = "shardctl.manifest.json";
/// that of a single file beside it, under the file's name with this at its end.
inline constexpr std::string_view kManifestSuffix = kCompanionSuffix;

/// Blocks of a file of that size.
constexpr std::int64_t block_count(std::int64_t bytes) { return (bytes + kManifestBlock - 1) / kManifestBlock; }
/// Characters of a hash in hexadecimal.
constexpr std::size_t hex_digits(HashAlgorithm algorithm) { return algorithm == HashAlgorithm::kSha256 ? 64 : 32; }

struct ManifestFile {
  std::string path;  ///< Below the folder; for a single file its name.
  std::int64_t bytes = 0;
  std::string blocks;         ///< The hashes of its blocks in hexadecimal, one behind the other.
  std::optional<int> rank{};  ///< The one that it lies with; none where all ranks write to one place.

  std::string_view block(std::int64_t index, HashAlgorithm algorithm) const {
    const std::size_t digits = hex_digits(algorithm);
    return std::string_view(blocks).substr(static_cast<std::size_t>(index) * digits, digits);
  }
};

/// A file of the source, as far as it can be told without reading it.
struct SourceFile {
  std::string path;  ///< Below the source; for a single file its name.
  std::int64_t bytes = 0;
  std::int64_t modified_ns = 0;  ///< Since 1970; 0 where nobody knows.
  std::string ends;              ///< XXH3-128 of its first and last 4 KiB.

  friend bool operator==(const SourceFile&, const SourceFile&) = default;
};

struct Manifest {
  std::string tool;  ///< "shardctl 0.2.0".
  HashAlgorithm algorithm = HashAlgorithm::kXxh3_128;
  std::string format;
  std::optional<std::int64_t> world_size;
  std::int64_t tensors = 0, objects = 0, chunks = 0;
  std::string layout;   ///< A digest of names, dtypes, shapes and boxes of all chunks.
  std::string options;  ///< A digest of all that was asked for.
  std::vector<SourceFile> source;
  std::vector<ManifestFile> files;

  const ManifestFile* find(std::string_view path) const;
};

/// One digest of the source's files.
std::string source_digest(const std::vector<SourceFile>& files);
/// The hash of a file's list of block hashes.
std::string list_hash(const ManifestFile& file, HashAlgorithm algorithm);

/// The document. Its length depends on hashes in no way, so that it is known before they are.
std::string manifest_text(const Manifest& manifest);

/// \throws Error kCorruption (kind bad_header; hash_mismatch where the text is not what was written)
Manifest parse_manifest(std::string_view text, const std::string& file);

}  // namespace shard
