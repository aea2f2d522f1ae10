/// \file
/// A JSON writer that streams: no document is ever held in memory.
///
/// Strings are written as valid UTF-8 whatever they hold. Characters that JSON must escape are escaped, and so is what
/// printable.h calls a control: a document may end up on a terminal. Encoded surrogates (which pickles may hold; strict
/// readers refuse the escape of a lone one) and bytes that are not UTF-8 become U+FFFD. Inside HTML `<`, `>` and `&`
/// are escaped too, so that no string can end the element that holds the document.
#pragma once

#include <concepts>
#include <cstdint>
#include <span>
#include <string_view>

#include "apps/shardctl/text/output_buffer.h"

namespace shard::app {

/// Where a document stands.
enum class JsonPlace { kAlone, kInHtml };

/// The caller opens and closes in pairs and gives every member of an object a key. Ownership: borrows the stream.
class JsonWriter {
 public:
  explicit JsonWriter(std::ostream& out, JsonPlace place = JsonPlace::kAlone) : sink_(out), place_(place) {}

  void begin_object() { open('{'); }
  void end_object() { close('}'); }
  void begin_array() { open('['); }
  void end_array() { close(']'); }
  /// `name` must need no escapes.
  void key(std::string_view name) {
    comma();
    sink_.add('"');
    sink_.add(name);
    sink_.add("\": ");
    first_ = true;
  }
  /// A key that may need escapes.
  void member_name(std::string_view name) {
    string(name);
    sink_.add(": ");
    first_ = true;
  }
  void string(std::string_view text);
  /// A string in pieces that cut no character: begin, pieces, end.
  void begin_string();
  void piece(std::string_view text);
  void end_string();
  /// The string, or null where it is empty.
  void string_or_null(std::string_view text) { text.empty() ? null() : string(text); }
  template <std::integral Integer>
  void number(Integer value) {
    comma();
    sink_.add_number(value);
  }
  void real(double value);  ///< NaN and infinities as strings, as Python spells them.
  void boolean(bool value) { word(value ? "true" : "false"); }
  void null() { word("null"); }
  /// Text that is JSON already.
  void literal(std::string_view text) { word(text); }
  void numbers(std::span<const std::int64_t> values);
  /// The end of the document.
  void end_line() { sink_.add('\n'); }
  /// Starts a new line, indented by `spaces`, before the next item.
  void line(int spaces) {
    if (!first_) sink_.add(',');
    first_ = true;
    sink_.add('\n');
    for (int i = 0; i < spaces; ++i) sink_.add(' ');
  }

 private:
  void comma() {
    if (!first_) sink_.add(", ");
    first_ = false;
  }
  void open(char bracket) {
    comma();
    sink_.add(bracket);
    first_ = true;
  }
  void close(char bracket) {
    sink_.add(bracket);
    first_ = false;
  }
  void word(std::string_view text) {
    comma();
    sink_.add(text);
  }

  OutputBuffer sink_;
  const JsonPlace place_;
  bool first_ = true;
};

/// A double as Python prints it: "10.0", "1e-05", "nan", "inf", "-inf".
std::string real_text(double value);

}  // namespace shard::app
