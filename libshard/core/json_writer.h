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
#include <utility>

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

  void begin_object() { open("{"); }
  void end_object() { close("}"); }
  void begin_array() { open("["); }
  void end_array() { close("]"); }
  /// `name` must need no escapes.
  void key(std::string_view name) {
    put(comma(), "\"", name, spaced("\": "));
    first_ = true;
  }
  /// Writes a key that may need escapes.
  void member_name(std::string_view name) {
    string(name);
    put(spaced(": "));
    first_ = true;
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
    char digits[24];
    word({digits, static_cast<std::size_t>(std::to_chars(digits, digits + sizeof digits, value).ptr - digits)});
  }
  void real(double value);  ///< Writes a number. NaN and infinities become strings, in Python's spelling.
  void boolean(bool value) { word(value ? "true" : "false"); }
  void null() { word("null"); }
  /// Writes text that is already JSON.
  void literal(std::string_view text) { word(text); }
  void numbers(std::span<const std::int64_t> values);
  /// An array to which `each` writes every item.
  template <class List, class Each>
  void list(const List& items, const Each& each) {
    begin_array();
    for (const auto& item : items) each(item);
    end_array();
  }
  /// An array of objects, whose members `write` writes for every item.
  template <class List, class Write>
  void objects(const List& items, const Write& write) {
    list(items, [&](const auto& item) { object(item, write); });
  }
  /// Does the same with each object on a separate line, indented by `spaces`.
  template <class List, class Write>
  void object_lines(int spaces, const List& items, const Write& write) {
    list(items, [&](const auto& item) {
      line(spaces);
      object(item, write);
    });
  }
  /// Starts a new line, indented by `spaces`, before the next item.
  void line(int spaces) {
    if (!first_) put(",");
    first_ = true;
    end_line(spaces);
  }
  /// A new line that precedes a closing bracket, indented by `spaces`, or ends the document.
  void end_line(int spaces = 0) {
    put("\n");
    for (int i = 0; i < spaces; ++i) put(" ");
  }
  /// A whole document: the schema, the members that `write` writes, and the end of the line.
  template <class Write>
  void document(std::string_view schema, const Write& write) {
    begin_object();
    key("schema"), string(schema);
    write();
    end_object();
    end_line();
  }

 private:
  template <class Item, class Write>
  void object(const Item& item, const Write& write) {
    begin_object();
    write(item);
    end_object();
  }
  /// Appends short texts by one call of the string, because a document has millions of them.
  template <class... Texts>
  void put(const Texts&... texts) {
    put_views(std::string_view(texts)...);
  }
  template <class... Views>
  void put_views(Views... texts) {
    char joined[128];
    if (const std::size_t bytes = (texts.size() + ...); bytes <= sizeof joined) {
      char* at = joined;
      ((at += texts.copy(at, texts.size())), ...);
      text_.append(joined, bytes);
    } else {
      (text_.append(texts), ...);
    }
    if (out_ != nullptr && text_.size() >= kBlock) flush();
  }
  /// The text without its last character, a space, if the style is compact.
  std::string_view spaced(std::string_view text) const {
    return text.substr(0, text.size() - (style_.compact ? 1 : 0));
  }
  /// The text before the next item.
  std::string_view comma() { return std::exchange(first_, false) ? std::string_view() : spaced(", "); }
  void open(std::string_view bracket) {
    word(bracket);
    first_ = true;
  }
  void close(std::string_view bracket) {
    put(bracket);
    first_ = false;
  }
  void word(std::string_view text) { put(comma(), text); }
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
