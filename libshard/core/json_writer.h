/// \file JsonWriter: writes every JSON document of the libraries and the program.
///
/// A writer appends to a text or a stream. It never stores a document as a tree, so the cost of a header with a million
/// names is that of its bytes. Strings are always valid UTF-8: bytes that are not UTF-8 become U+FFFD. Code that must
/// preserve a name exactly checks it with is_utf8 first.
#pragma once

#include <charconv>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <ostream>
#include <span>
#include <string>
#include <string_view>

namespace shard {

/// Characters that a string escapes in addition to quotes, backslashes and C0 controls.
enum class JsonEscapes {
  kControls,  ///< All characters that is_control accepts, because the document may be shown on a terminal.
  kInHtml,    ///< Also `<`, `>` and `&`, so that no string can end the HTML element that contains the document.
  kNone,      ///< Nothing else, like serde_json.
  kAscii,     ///< DEL and all characters that are not ASCII, like Python's json.dumps.
};

struct JsonStyle {
  JsonEscapes escapes = JsonEscapes::kControls;
  bool compact = false;  ///< No space after commas and colons.
};

/// The style of Python's json.dumps.
inline constexpr JsonStyle kPythonJson{JsonEscapes::kAscii, false};

/// The caller must open and close in pairs, and give every member of an object a key.
///
/// Ownership: borrows the text or the stream. Threads: one. A stream is written in blocks of 64 KiB, and at the end.
/// Text that a closed pipe refuses is dropped, and the stream's state shows the failure.
class JsonWriter {
 public:
  explicit JsonWriter(std::string& text, JsonStyle style = {}) : text_(text), style_(style) {}
  explicit JsonWriter(std::ostream& out, JsonStyle style = {}) : text_(own_), out_(&out), style_(style) {}
  ~JsonWriter() { flush(); }
  JsonWriter(const JsonWriter&) = delete;
  JsonWriter& operator=(const JsonWriter&) = delete;

  void begin_object() { open('{'); }
  void end_object() { close('}'); }
  void begin_array() { open('['); }
  void end_array() { close(']'); }
  /// `name` must need no escapes.
  void key(std::string_view name) {
    comma();
    put('"'), put(name), put('"');
    colon();
  }
  /// Writes a key that may need escapes.
  void member_name(std::string_view name) {
    string(name);
    colon();
  }
  void string(std::string_view text);
  /// Writes a string in pieces that split no character: begin, pieces, end.
  void begin_string();
  void piece(std::string_view text);
  void end_string();
  /// The string, or null if it is empty.
  void string_or_null(std::string_view text) { text.empty() ? null() : string(text); }
  template <std::integral Integer>
  void number(Integer value) {
    comma();
    char digits[24];
    put({digits, static_cast<std::size_t>(std::to_chars(digits, digits + sizeof digits, value).ptr - digits)});
  }
  void real(double value);  ///< Writes a number. NaN and infinities become strings, in Python's spelling.
  void boolean(bool value) { word(value ? "true" : "false"); }
  void null() { word("null"); }
  /// Writes text that is already JSON.
  void literal(std::string_view text) { word(text); }
  void numbers(std::span<const std::int64_t> values);
  /// Starts a new line, indented by `spaces`, before the next item.
  void line(int spaces) {
    if (!first_) put(',');
    first_ = true;
    end_line(spaces);
  }
  /// A new line that precedes a closing bracket, indented by `spaces`, or ends the document.
  void end_line(int spaces = 0) {
    put('\n');
    for (int i = 0; i < spaces; ++i) put(' ');
  }

 private:
  void put(char c) { text_.push_back(c); }
  void put(std::string_view text) {
    text_.append(text);
    if (out_ != nullptr && text_.size() >= kBlock) flush();
  }
  void comma() {
    if (!first_) put(style_.compact ? "," : ", ");
    first_ = false;
  }
  void colon() {
    put(style_.compact ? ":" : ": ");
    first_ = true;
  }
  void open(char bracket) {
    comma();
    put(bracket);
    first_ = true;
  }
  void close(char bracket) {
    put(bracket);
    first_ = false;
  }
  void word(std::string_view text) {
    comma();
    put(text);
  }
  std::size_t escape_one(std::string_view text);
  void flush();

  static constexpr std::size_t kBlock = 64 << 10;
  std::string own_;  ///< The block of a stream.
  std::string& text_;
  std::ostream* const out_ = nullptr;
  const JsonStyle style_;
  bool first_ = true;  ///< The next item needs no comma.
};

}  // namespace shard
