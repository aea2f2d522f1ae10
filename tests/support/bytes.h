/// \file
/// Bytes and texts for tests.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace shard::test {

inline std::span<const std::byte> as_span(std::string_view text) { return std::as_bytes(std::span(text)); }

inline std::string as_text(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

}  // namespace shard::test
