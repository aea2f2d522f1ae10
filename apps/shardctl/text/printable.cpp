#include "apps/shardctl/text/printable.h"

#include <fmt/format.h>

#include <algorithm>

#include "libshard/core/utf8.h"

namespace shard::app {

bool is_plain_ascii(std::string_view text) {
  bool is_plain = true;
  for (const char c : text) is_plain &= c >= 0x20 && c < 0x7F;  // Without a return in between: vector instructions.
  return is_plain;
}

std::string printable(std::string_view text) {
  if (is_plain_ascii(text)) return std::string(text);
  std::string result;
  result.reserve(text.size());
  while (!text.empty()) {
    const CodePoint point = decode_utf8(text);
    if (point.length == 0) {
      result += fmt::format("\\x{:02x}", static_cast<unsigned char>(text[0]));
    } else if (is_control(point.value) || point.is_surrogate()) {
      result += point.value > 0x9F ? fmt::format("\\u{:04x}", point.value) : fmt::format("\\x{:02x}", point.value);
    } else {
      result += text.substr(0, point.length);
    }
    text.remove_prefix(std::max<std::size_t>(1, point.length));
  }
  return result;
}

}  // namespace shard::app
