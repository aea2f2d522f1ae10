#include "apps/shardctl/json_writer.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

namespace shard::app {
namespace {

/// True for bytes that a JSON string holds unchanged.
constexpr std::array<bool, 256> kPlain = [] {
  std::array<bool, 256> plain{};
  for (int c = 0x20; c < 0x7F; ++c) plain[static_cast<std::size_t>(c)] = c != '"' && c != '\\';
  return plain;
}();

struct CodePoint {
  unsigned value = 0;
  std::size_t length = 0;  ///< 0: not the start of UTF-8.
};

/// Decodes UTF-8 at the front of `text`, surrogates included.
CodePoint decode(std::string_view text) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned>(static_cast<unsigned char>(text[i])); };
  const unsigned lead = byte(0);
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

/// Writes the front of `text`, which is not a plain byte. \returns the number of bytes written.
std::size_t escape_one(TextSink& sink, std::string_view text) {
  const auto c = static_cast<unsigned char>(text[0]);
  switch (c) {
    case '"':
      sink.add("\\\"");
      return 1;
    case '\\':
      sink.add("\\\\");
      return 1;
    case '\n':
      sink.add("\\n");
      return 1;
    case '\t':
      sink.add("\\t");
      return 1;
    case '\r':
      sink.add("\\r");
      return 1;
    default:
      break;
  }
  if (c < 0x80) {
    sink.add(fmt::format("\\u{:04x}", c));
    return 1;
  }
  const CodePoint point = decode(text);
  const bool is_surrogate = point.value >= 0xD800 && point.value < 0xE000;
  sink.add(point.length == 0 || is_surrogate ? "\xEF\xBF\xBD" : text.substr(0, point.length));
  return std::max<std::size_t>(1, point.length);
}

}  // namespace

void JsonWriter::string(std::string_view text) {
  comma();
  sink_.add('"');
  while (!text.empty()) {
    std::size_t plain = 0;
    while (plain < text.size() && kPlain[static_cast<unsigned char>(text[plain])]) ++plain;
    sink_.add(text.substr(0, plain));
    text.remove_prefix(plain);
    if (!text.empty()) text.remove_prefix(escape_one(sink_, text));
  }
  sink_.add('"');
}

void JsonWriter::real(double value) {
  if (std::isfinite(value)) {
    word(real_text(value));
  } else {
    string(real_text(value));
  }
}

void JsonWriter::numbers(std::span<const std::int64_t> values) {
  begin_array();
  for (const std::int64_t value : values) number(value);
  end_array();
}

std::string real_text(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  std::string text = fmt::format("{}", value);
  if (text.find_first_of(".e") == std::string::npos) text += ".0";
  return text;
}

}  // namespace shard::app
