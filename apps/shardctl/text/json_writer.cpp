#include "apps/shardctl/text/json_writer.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "apps/shardctl/text/printable.h"

namespace shard::app {
namespace {

using ByteSet = std::array<bool, 256>;

/// Printable ASCII without quotes, backslashes and `others`.
constexpr ByteSet plain_without(std::string_view others) {
  ByteSet plain{};
  for (char c = 0x20; c < 0x7F; ++c) {
    plain[static_cast<std::size_t>(c)] = c != '"' && c != '\\' && others.find(c) == std::string_view::npos;
  }
  return plain;
}

/// True for bytes that a JSON string holds unchanged.
constexpr ByteSet kPlain = plain_without(""), kPlainInHtml = plain_without("<>&");

/// Writes the front of `text`, which is not a plain byte. \returns the number of bytes written.
std::size_t escape_one(OutputBuffer& sink, std::string_view text) {
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
  const CodePoint point = decode_utf8(text);
  const bool is_markup = c == '<' || c == '>' || c == '&';  // Plain unless the document stands in HTML.
  if (point.length > 0 && (is_control(point.value) || is_markup)) {
    sink.add(fmt::format("\\u{:04x}", point.value));
    return point.length;
  }
  const bool is_surrogate = point.value >= 0xD800 && point.value < 0xE000;
  sink.add(point.length == 0 || is_surrogate ? "\xEF\xBF\xBD" : text.substr(0, point.length));
  return std::max<std::size_t>(1, point.length);
}

}  // namespace

void JsonWriter::begin_string() {
  comma();
  sink_.add('"');
}

void JsonWriter::piece(std::string_view text) {
  const ByteSet& is_plain = place_ == JsonPlace::kInHtml ? kPlainInHtml : kPlain;
  while (!text.empty()) {
    std::size_t plain = 0;
    while (plain < text.size() && is_plain[static_cast<unsigned char>(text[plain])]) ++plain;
    sink_.add(text.substr(0, plain));
    text.remove_prefix(plain);
    if (!text.empty()) text.remove_prefix(escape_one(sink_, text));
  }
}

void JsonWriter::end_string() { sink_.add('"'); }

void JsonWriter::string(std::string_view text) {
  begin_string();
  piece(text);
  end_string();
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
