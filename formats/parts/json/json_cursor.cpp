#include "formats/parts/json/json_cursor.h"

#include <fmt/format.h>
#include <simdjson.h>

#include <algorithm>
#include <limits>

#include "libshard/core/error.h"
#include "libshard/core/utf8.h"

namespace shard {

JsonCursor::JsonCursor(const char* begin, const char* end, std::string file, FindingKind kind)
    : begin_(begin), end_(end), at_(begin), file_(std::move(file)), kind_(kind) {
  if (!simdjson::validate_utf8(begin, static_cast<std::size_t>(end - begin))) {
    throw Error(ErrorCode::kCorruption, "the JSON text is not valid UTF-8").in_file(file_).of_kind(kind_);
  }
}

void JsonCursor::fail(const std::string& what) const {
  throw Error(ErrorCode::kCorruption, fmt::format("bad JSON at byte {}: {}", position(), what))
      .in_file(file_)
      .of_kind(kind_);
}

void JsonCursor::fail_expected(char wanted) const { fail(fmt::format("expected '{}'", wanted)); }

void JsonCursor::fail_depth() const { fail(fmt::format("more than {} levels deep", kMaxDepth)); }

void JsonCursor::skip_escapes() {
  for (; *at_ != '"'; skip_plain()) {
    if (*at_ != '\\') fail(at_ == end_ ? "a string does not end" : "a control character in a string");
    has_escapes_ = true;
    if (++at_ == end_) fail("a string does not end");
    ++at_;  // Any byte may follow a backslash here; decode() checks it.
  }
}

std::uint32_t JsonCursor::read_hex(const char*& at, const char* end) const {
  if (end - at < 4) fail("an incomplete \\u escape");
  std::uint32_t code = 0;
  for (int i = 0; i < 4; ++i) {
    const char c = *at++;
    const char lower = static_cast<char>(c | 0x20);
    if (!is_digit(c) && (lower < 'a' || lower > 'f')) fail("a bad \\u escape");
    code = code * 16 + static_cast<std::uint32_t>(is_digit(c) ? c - '0' : lower - 'a' + 10);
  }
  return code;
}

void JsonCursor::read_escape(const char*& at, const char* end, std::string& out) const {
  constexpr std::string_view kLetters = "\"\\/bfnrt";
  constexpr std::string_view kMeanings = "\"\\/\b\f\n\r\t";
  const char c = *at++;
  if (const std::size_t i = kLetters.find(c); i != std::string_view::npos) {
    out += kMeanings[i];
    return;
  }
  if (c != 'u') fail("an unknown escape in a string");
  std::uint32_t code = read_hex(at, end);
  if (code >= 0xD800 && code < 0xDC00 && end - at >= 6 && at[0] == '\\' && at[1] == 'u') {
    at += 2;
    const std::uint32_t low = read_hex(at, end);
    if (low < 0xDC00 || low > 0xDFFF) fail("a lone surrogate in a string");
    code = 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00);
  } else if (code >= 0xD800 && code <= 0xDFFF) {
    fail("a lone surrogate in a string");
  }
  append_utf8(code, out);
}

std::string JsonCursor::decode(std::string_view raw) const {
  std::string out;
  out.reserve(raw.size());
  const char* at = raw.data();
  const char* end = at + raw.size();
  for (;;) {
    const char* escape = std::find(at, end, '\\');
    out.append(at, escape);
    if (escape == end) break;
    at = escape + 1;
    read_escape(at, end, out);
  }
  return out;
}

void JsonCursor::check_digits(const char* begin) {
  std::int64_t value = 0;
  constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
  for (const char* digit = begin; digit != at_; ++digit) {
    if (value > (kMost - (*digit - '0')) / 10) {
      at_ = digit;
      fail("a number of 2^63 or more");
    }
    value = value * 10 + (*digit - '0');
  }
  if (at_ == begin || *at_ == '.' || *at_ == 'e' || *at_ == 'E') fail("expected a whole number that is not negative");
  if (*begin == '0' && at_ - begin > 1) fail("a number with leading zeros");
}

bool JsonCursor::take_word(std::string_view word) {
  if (static_cast<std::size_t>(end_ - at_) < word.size() || std::string_view(at_, word.size()) != word) return false;
  at_ += word.size();
  return true;
}

bool JsonCursor::take_null() {
  skip_space();
  return take_word("null");
}

void JsonCursor::skip_number() {
  const auto digits = [this] {
    if (!is_digit(*at_)) fail("expected a value");
    while (is_digit(*at_)) ++at_;
  };
  if (*at_ == '-') ++at_;
  const char* begin = at_;
  digits();
  if (*begin == '0' && at_ - begin > 1) fail("a number with leading zeros");
  if (*at_ == '.') {
    ++at_;
    digits();
  }
  if (*at_ == 'e' || *at_ == 'E') {
    ++at_;
    if (*at_ == '+' || *at_ == '-') ++at_;
    digits();
  }
}

void JsonCursor::skip() {
  skip_space();
  bool is_first = true;
  std::string_view key;
  if (*at_ == '{') {
    enter_object();
    while (next_key(key, is_first)) {
      if (has_escapes_) decode(key);
      skip();
    }
  } else if (*at_ == '[') {
    enter_array();
    while (next_element(is_first)) skip();
  } else if (*at_ == '"') {
    const std::string_view raw = string();
    if (has_escapes_) decode(raw);
  } else if (takes_python_numbers_ && (take_word("NaN") || take_word("Infinity") || take_word("-Infinity"))) {
    return;
  } else if (!take_word("true") && !take_word("false") && !take_word("null")) {
    skip_number();
  }
}

void JsonCursor::finish() {
  skip_space();
  if (at_ != end_) fail("more text after the value");
}

}  // namespace shard
