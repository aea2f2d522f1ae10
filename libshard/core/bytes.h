/// \file
/// Bytes in memory, and the same as text.
#pragma once

#include <cstddef>
#include <span>
#include <string_view>
#include <vector>

namespace shard {

using Bytes = std::vector<std::byte>;

/// The same bytes as text: a view.
inline std::string_view as_text(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

/// A copy of the text's bytes.
inline Bytes to_bytes(std::string_view text) {
  const auto bytes = std::as_bytes(std::span(text));
  return {bytes.begin(), bytes.end()};
}

}  // namespace shard
