/// \file
/// A strict JSON reader that walks once over a text and stores nothing, for maps of a million entries.
///
/// A separate parser is necessary because a header of a million tensors (75 MB) must be read without memory besides the
/// text, and repeated keys must be detected. Names are views into the text. A DOM hides repeated keys and takes several
/// times the memory of the text. A parser that builds an index first (simdjson) takes 1.3 times its memory; simdjson is
/// only used to check UTF-8, once for the whole text. Grammar: RFC 8259. Two rules are stricter: only integers are
/// accepted, and lone surrogates are refused.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>

#include "libshard/core/ascii.h"
#include "libshard/core/finding_kind.h"

namespace shard {

/// A position in a JSON text. Ownership: a view of the text, which must outlive it and must end in a NUL that is not
/// part of it (the sentinel).
/// \throws Error kCorruption (kind bad_header or as given), with the byte position, from every member.
class JsonCursor {
 public:
  /// Checks that the text is UTF-8. `file` and `kind` are for messages.
  JsonCursor(const char* begin, const char* end, std::string file, FindingKind kind);

  /// Makes `skip` also accept the constants that Python writes for numbers which JSON lacks: NaN, Infinity, -Infinity.
  void take_python_numbers() { takes_python_numbers_ = true; }

  /// Enters an object: consumes `{`. Then call next_key() until it returns false.
  void enter_object() { enter('{'); }
  /// Moves to the next member's value. The caller sets `is_first` before the first call; this function clears it.
  /// \returns false at the object's end.
  bool next_key(std::string_view& key, bool& is_first) {
    if (!next('}', is_first)) return false;
    key = string();
    expect(':');
    return true;
  }
  /// Does the same and resolves the escapes of the key. A key with escapes is stored in `decoded`, any other is a view
  /// of the text.
  bool next_name(std::string_view& name, std::string& decoded, bool& is_first) {
    if (!next_key(name, is_first)) return false;
    if (has_escapes_) name = decoded = decode(name);
    return true;
  }
  /// Whether the next value begins with this character: '{', '[' or '"'. Does not move.
  bool is_next(char first) const {
    const char* at = at_;
    while (is_space(*at)) ++at;
    return *at == first;
  }
  void enter_array() { enter('['); }
  /// Moves to the next element, as next_key does to the next member.
  bool next_element(bool& is_first) { return next(']', is_first); }

  /// A string as spelled between its quotes. Call `decode` if has_escapes().
  std::string_view string() {
    expect('"');
    const char* const begin = at_;
    has_escapes_ = false;
    skip_plain();
    if (*at_ != '"') skip_escapes();
    return {begin, static_cast<std::size_t>(at_++ - begin)};
  }
  bool has_escapes() const { return has_escapes_; }  ///< Whether the last string or key has escapes.
  /// The text of a string with its escapes resolved.
  std::string decode(std::string_view raw) const;
  /// An integer in [0, 2^63).
  std::int64_t integer() {
    skip_space();
    const char* const begin = at_;
    std::uint64_t value = 0;
    while (is_digit(*at_)) value = value * 10 + static_cast<std::uint64_t>(*at_++ - '0');
    // Other spellings are rare, so they are examined once more.
    const std::ptrdiff_t digits = at_ - begin;
    const bool is_usual = digits > 0 && digits <= kSafeDigits && (*begin != '0' || digits == 1);
    if (!is_usual || *at_ == '.' || *at_ == 'e' || *at_ == 'E') check_digits(begin);
    return static_cast<std::int64_t>(value);
  }
  /// Consumes `null` if it is next.
  bool take_null();
  /// Skips any value, nested up to 64 levels.
  void skip();
  /// Does the same. \returns the value as spelled.
  std::string_view raw_value() {
    skip_space();
    const char* const begin = at_;
    skip();
    return {begin, static_cast<std::size_t>(at_ - begin)};
  }
  /// Checks that only white space follows the last value.
  void finish();

  std::int64_t position() const { return at_ - begin_; }
  [[noreturn]] void fail(const std::string& what) const;

 private:
  static constexpr int kMaxDepth = 64;
  static constexpr std::ptrdiff_t kSafeDigits = 18;  ///< The number of digits that are always below 2^63.

  void skip_space() {
    while (is_space(*at_)) ++at_;
  }
  static bool is_space(char c) { return c == ' ' || c == '\n' || c == '\t' || c == '\r'; }
  void expect(char wanted) {
    skip_space();
    if (*at_ != wanted || at_ == end_) fail_expected(wanted);
    ++at_;
  }
  void enter(char bracket) {
    expect(bracket);
    if (++depth_ > kMaxDepth) fail_depth();
  }
  /// Moves past the comma before the next item, or past the closing `bracket`. \returns false in the second case.
  bool next(char bracket, bool& is_first) {
    skip_space();
    if (*at_ == bracket) {
      ++at_;
      --depth_;
      return false;
    }
    if (!is_first) expect(',');
    is_first = false;
    return true;
  }
  /// Moves to the next quote, backslash or control character of a string, eight bytes at a time.
  void skip_plain() {
    std::uint64_t word = 0;
    for (; end_ - at_ >= static_cast<std::ptrdiff_t>(sizeof word); at_ += sizeof word) {
      std::memcpy(&word, at_, sizeof word);
      if (const std::uint64_t ends = ends_in(word); ends != 0) {
        at_ += std::countr_zero(ends) / 8;
        return;
      }
    }
    while (static_cast<unsigned char>(*at_) >= ' ' && *at_ != '"' && *at_ != '\\') ++at_;
  }
  /// The top bit of each byte that ends a run of plain ones. Bytes after the first such one may be marked by mistake.
  static std::uint64_t ends_in(std::uint64_t word) {
    constexpr std::uint64_t kOnes = 0x0101010101010101U;
    const auto below = [](std::uint64_t bytes, std::uint64_t limit) { return (bytes - kOnes * limit) & ~bytes; };
    const std::uint64_t ends = below(word, ' ') | below(word ^ kOnes * '"', 1) | below(word ^ kOnes * '\\', 1);
    return ends & (kOnes << 7);
  }
  /// Moves to the end of a string from its first byte that is not plain.
  void skip_escapes();
  /// \throws Error  always
  [[noreturn]] void fail_expected(char wanted) const;
  [[noreturn]] void fail_depth() const;
  /// Checks the digits from `begin` on. \throws Error  they are not a number below 2^63 as JSON spells it
  void check_digits(const char* begin);
  bool take_word(std::string_view word);
  void skip_number();
  void read_escape(const char*& at, const char* end, std::string& out) const;
  std::uint32_t read_hex(const char*& at, const char* end) const;

  const char* begin_;
  const char* end_;
  const char* at_;
  std::string file_;
  FindingKind kind_;
  bool has_escapes_ = false, takes_python_numbers_ = false;
  int depth_ = 0;
};

}  // namespace shard
