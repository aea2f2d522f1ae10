/// \file Hashes: CRC-32 (zip), CRC-32C (stores), XXH3-128, SHA-256. Thin wrappers of ISA-L, zlib, libxxhash and
/// OpenSSL.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

namespace shard {

/// CRC-32 (IEEE, as in zip), continued from `crc`.
std::uint32_t crc32(std::span<const std::byte> data, std::uint32_t crc = 0);
/// CRC-32C (Castagnoli), continued from `crc`.
std::uint32_t crc32c(std::span<const std::byte> data, std::uint32_t crc = 0);
/// CRC-32 of A followed by B, from those of A and B and B's length.
std::uint32_t crc32_combine(std::uint32_t crc_a, std::uint32_t crc_b, std::int64_t bytes_b);

/// Two lower-case hexadecimal digits per byte, in the order of the bytes.
std::string to_hex(std::span<const std::byte> bytes);

enum class HashAlgorithm { kXxh3_128, kSha256 };
/// "xxh3_128" or "sha256"; \throws Error kInvalidArgument
HashAlgorithm parse_hash_algorithm(std::string_view name);
std::string_view hash_name(HashAlgorithm algorithm);

/// An incremental hash. Threads: each thread needs its own.
class Hasher {
 public:
  explicit Hasher(HashAlgorithm algorithm);
  ~Hasher();
  Hasher(Hasher&&) noexcept;
  void update(std::span<const std::byte> data);
  void update(std::string_view text);
  std::string finish_hex();  ///< The hash in lower-case hexadecimal. XXH3-128 is big-endian. Called once, last.

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace shard
