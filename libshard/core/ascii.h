/// \file
/// Classes and cases of ASCII characters, in every locale.
#pragma once

#include <algorithm>
#include <string>
#include <string_view>

namespace shard {

constexpr bool is_digit(char c) { return c >= '0' && c <= '9'; }
constexpr bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }

/// Whether `text` has only letters, digits and characters of `more`.
constexpr bool is_alphanumeric(std::string_view text, std::string_view more = {}) {
  return std::ranges::all_of(
      text, [more](char c) { return is_letter(c) || is_digit(c) || more.find(c) != std::string_view::npos; });
}

constexpr char to_lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; }
constexpr char to_upper(char c) { return c >= 'a' && c <= 'z' ? static_cast<char>(c - 'a' + 'A') : c; }

inline std::string lower_case(std::string text) {
  std::ranges::transform(text, text.begin(), to_lower);
  return text;
}

inline std::string upper_case(std::string text) {
  std::ranges::transform(text, text.begin(), to_upper);
  return text;
}

}  // namespace shard
