#include "apps/shardctl/text/printable.h"

#include <fmt/format.h>

#include <algorithm>

namespace shard::app {

CodePoint decode_utf8(std::string_view text) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned>(static_cast<unsigned char>(text[i])); };
  const unsigned lead = byte(0);
  if (lead < 0x80) return {lead, 1};
  const std::size_t length = lead < 0xC2 ? 0 : lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : lead < 0xF5 ? 4 : 0;
  if (length == 0 || text.size() < length) return {};
  unsigned value = lead & (0x7FU >> length);
  for (std::size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xC0) != 0x80) return {};
    value = value << 6 | (byte(i) & 0x3F);
  }
  const bool valid = value >= (length == 2 ? 0x80U : length == 3 ? 0x800U : 0x10000U) && value <= 0x10FFFF;
  return valid ? CodePoint{value, length} : CodePoint{};
}

bool is_control(unsigned code_point) {
  const auto within = [code_point](unsigned first, unsigned last) { return code_point >= first && code_point <= last; };
  return code_point < 0x20 || within(0x7F, 0x9F) || code_point == 0x061C || within(0x200E, 0x200F) ||
         within(0x2028, 0x202E) || within(0x2066, 0x2069);
}

bool is_plain_ascii(std::string_view text) {
  return std::ranges::all_of(text, [](char c) { return c >= 0x20 && c < 0x7F; });
}

std::string printable(std::string_view text) {
  if (is_plain_ascii(text)) return std::string(text);
  std::string result;
  result.reserve(text.size());
  while (!text.empty()) {
    const CodePoint point = decode_utf8(text);
    const bool is_surrogate = point.value >= 0xD800 && point.value < 0xE000;
    if (point.length == 0) {
      result += fmt::format("\\x{:02x}", static_cast<unsigned char>(text[0]));
    } else if (is_control(point.value) || is_surrogate) {
      result += point.value > 0x9F ? fmt::format("\\u{:04x}", point.value) : fmt::format("\\x{:02x}", point.value);
    } else {
      result += text.substr(0, point.length);
    }
    text.remove_prefix(std::max<std::size_t>(1, point.length));
  }
  return result;
}

}  // namespace shard::app
