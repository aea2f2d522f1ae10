/// \file Checksums by which object stores confirm the bytes that they received.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace shard {

/// CRC-32C (Castagnoli), continued from `crc`.
std::uint32_t crc32c(std::span<const std::byte> data, std::uint32_t crc = 0);
/// The four bytes, highest first, in base64.
std::string crc32c_text(std::uint32_t crc);
/// In lower-case hexadecimal; empty if this machine does not permit MD5. It only identifies parts.
std::string md5_hex(std::span<const std::byte> data);

}  // namespace shard
