#include <cstdlib>

#include "libshard/manifest/integrity.h"
#include "libshard/manifest/manifest.h"
#include "tests/fuzz/target.h"

namespace {

/// The text with the hash at its end that makes it a valid manifest.
std::string with_sum(std::string_view body) {
  shard::Hasher hasher(shard::HashAlgorithm::kXxh3_128);
  const std::string text = std::string(body) + ",\n";
  hasher.update(text);
  return text + " \"sum\": \"" + hasher.finish_hex() + "\"\n}\n";
}

/// The parsed manifest is written again as the same text, and is not larger than its text.
void check(const shard::Manifest& manifest, std::size_t text_bytes) {
  std::size_t held = 0;
  for (const shard::ManifestFile& file : manifest.files) {
    held += file.blocks.size();
    const auto blocks = static_cast<std::size_t>(shard::block_count(file.bytes));
    if (file.blocks.size() != blocks * shard::hex_digits(manifest.algorithm)) std::abort();
  }
  if (held > text_bytes) std::abort();
  const shard::Manifest again = shard::parse_manifest(shard::manifest_text(manifest), "again");
  const bool is_same = again.tool == manifest.tool && again.source == manifest.source &&
                       again.files.size() == manifest.files.size() && again.world_size == manifest.world_size;
  if (!is_same) std::abort();
}

}  // namespace

// A manifest: 0 unchanged, 1 with a right sum at its end; 2: Megatron-Core's hashes.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace shard;
  if (size == 0) return 0;
  const std::string_view input = fuzz::as_text(data + 1, size - 1);
  try {
    if (data[0] % 3 == 2) {
      for (const auto& [name, hash] : parse_integrity(input, "in")) {
        if (hash.size() != hex_digits(HashAlgorithm::kSha256)) std::abort();
      }
      return 0;
    }
    const std::string text = data[0] % 3 == 1 ? with_sum(input) : std::string(input);
    check(parse_manifest(text, "in"), text.size());
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kCorruption && error.code() != ErrorCode::kUnsupported) std::abort();
  }
  return 0;
}
