/// \file
/// safetensors files built by hand, for tests.
#pragma once

#include <cstdint>
#include <string>

namespace shard::test {

/// A number as the eight bytes before a header.
inline std::string length_bytes(std::uint64_t length) {
  std::string bytes;
  for (int i = 0; i < 8; ++i, length >>= 8) bytes += static_cast<char>(length & 0xFF);
  return bytes;
}

/// Length, header, data.
inline std::string safetensors_file(const std::string& header, const std::string& data = "") {
  return length_bytes(header.size()) + header + data;
}

}  // namespace shard::test
