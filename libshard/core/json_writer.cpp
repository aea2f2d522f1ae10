#include "libshard/core/json_writer.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>

#include "libshard/core/python_text.h"
#include "libshard/core/utf8.h"

namespace shard {

namespace {

using ByteSet = std::array<bool, 256>;

/// ASCII from the space to `last`, except quotes, backslashes and `others`.
constexpr ByteSet plain_up_to(unsigned last, std::string_view others) {
  ByteSet plain{};
  for (unsigned c = 0x20; c <= last; ++c) {
    plain[c] = c != '"' && c != '\\' && others.find(static_cast<char>(c)) == std::string_view::npos;
  }
  return plain;
}

/// True for bytes that a string may contain unchanged.
constexpr ByteSet kPlain = plain_up_to(0x7E, ""), kPlainInHtml = plain_up_to(0x7E, "<>&"),
                  kPlainWithDelete = plain_up_to(0x7F, "");

const ByteSet& plain_bytes(JsonEscapes escapes) {
  if (escapes == JsonEscapes::kInHtml) return kPlainInHtml;
  return escapes == JsonEscapes::kNone ? kPlainWithDelete : kPlain;
}

/// True for the two styles whose documents are shown to people.
bool is_shown(JsonEscapes escapes) { return escapes == JsonEscapes::kControls || escapes == JsonEscapes::kInHtml; }

bool must_escape(unsigned point, JsonEscapes escapes) {
  if (escapes == JsonEscapes::kAscii) return point < 0x20 || point >= 0x7F;
  if (escapes == JsonEscapes::kNone) return point < 0x20;
  return is_control(point) || point < 0x80;  // ASCII that is not plain: markup.
}

/// The letter after the backslash; 0 if the character has none.
char letter_of(char c, JsonEscapes escapes) {
  constexpr std::string_view kEscaped = "\"\\\n\t\r\b\f", kLetters = "\"\\ntrbf";
  const std::size_t at = kEscaped.find(c);
  const bool is_named = at < kEscaped.find('\b') || (at < kEscaped.size() && !is_shown(escapes));
  return is_named ? kLetters[at] : '\0';
}

/// \uXXXX, in two halves past U+FFFF.
void append_escape(std::string& text, unsigned point) {
  if (point > 0xFFFF) {
    fmt::format_to(std::back_inserter(text), "\\u{:04x}", 0xD7C0 + (point >> 10));
    point = 0xDC00 + (point & 0x3FF);
  }
  fmt::format_to(std::back_inserter(text), "\\u{:04x}", point);
}

}  // namespace

// Writes the first character of `text`, which is not a plain byte. Returns the number of its bytes.
std::size_t JsonWriter::escape_one(std::string_view text) {
  if (const char letter = letter_of(text[0], style_.escapes); letter != '\0') {
    put("\\", std::string_view(&letter, 1));
    return 1;
  }
  const CodePoint point = decode_utf8(text);
  if (point.length == 0 || point.is_surrogate()) {
    put(style_.escapes == JsonEscapes::kAscii ? "\\ufffd" : "\xEF\xBF\xBD");
    return is_shown(style_.escapes) ? std::max<std::size_t>(1, point.length) : invalid_prefix(text);
  }
  if (must_escape(point.value, style_.escapes)) {
    append_escape(text_, point.value);
  } else {
    put(text.substr(0, point.length));
  }
  return point.length;
}

void JsonWriter::begin_string() { word("\""); }

void JsonWriter::piece(std::string_view text) {
  const ByteSet& is_plain = plain_bytes(style_.escapes);
  while (!text.empty()) {
    std::size_t plain = 0;
    while (plain < text.size() && is_plain[static_cast<unsigned char>(text[plain])]) ++plain;
    put(text.substr(0, plain));
    text.remove_prefix(plain);
    if (!text.empty()) text.remove_prefix(escape_one(text));
  }
}

void JsonWriter::end_string() { put("\""); }

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

void JsonWriter::flush() {
  if (out_ == nullptr || text_.empty()) return;
  if (out_->good()) {
    out_->write(text_.data(), static_cast<std::streamsize>(text_.size()));
    out_->flush();
  }
  text_.clear();
}

}  // namespace shard
