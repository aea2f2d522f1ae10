/// \file Checksums by which object stores confirm the bytes that they received.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace shard {

/// The four bytes of a CRC-32C, highest first, in base64.
std::string crc32c_text(std::uint32_t crc);
/// In lower-case hexadecimal; empty if this machine does not permit MD5. It only identifies parts.
std::string md5_hex(std::span<const std::byte> data);

}  // namespace shard
