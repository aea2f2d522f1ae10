/// \file
/// Numbers in texts: decimal digits, after a '-' if the type is signed. No '+', no spaces, no leading "0x".
#pragma once

#include <charconv>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>
#include <system_error>

namespace shard {

/// Removes the number at the front of `text` and returns it. Returns nothing, and leaves `text` unchanged, if there is
/// no number or `Number` cannot represent it. `Number` is an integer or floating-point type.
template <class Number = std::int64_t>
std::optional<Number> take_number(std::string_view& text) {
  Number number{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc()) return std::nullopt;
  text.remove_prefix(static_cast<std::size_t>(end - text.data()));
  return number;
}

/// The number that is the whole `text`.
template <class Number = std::int64_t>
std::optional<Number> parse_number(std::string_view text) {
  const std::optional<Number> number = take_number<Number>(text);
  return text.empty() ? number : std::nullopt;
}

/// Does the same without a sign: digits only.
template <class Number = std::int64_t>
std::optional<Number> take_natural(std::string_view& text) {
  return text.starts_with('-') ? std::nullopt : take_number<Number>(text);
}
template <class Number = std::int64_t>
std::optional<Number> parse_natural(std::string_view text) {
  return text.starts_with('-') ? std::nullopt : parse_number<Number>(text);
}

}  // namespace shard
