/// \file
/// Parts of texts.
#pragma once

#include <cstddef>
#include <string_view>
#include <vector>

namespace shard {

/// The parts of `text` between separators, one more than there are separators. Ownership: views of `text`.
inline std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  for (;;) {
    const std::size_t end = text.find(separator);
    parts.push_back(text.substr(0, end));
    if (end == std::string_view::npos) return parts;
    text.remove_prefix(end + 1);
  }
}

/// Removes `prefix` from the begin of `text`. \returns false if `text` does not begin with it.
inline bool take_prefix(std::string_view& text, std::string_view prefix) {
  if (!text.starts_with(prefix)) return false;
  text.remove_prefix(prefix.size());
  return true;
}

}  // namespace shard
