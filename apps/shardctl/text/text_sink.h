/// \file
/// Text for people. Whatever is added is made printable here, so that no caller can forget it: only this class writes
/// the ends of lines, tabs and colours.
#pragma once

#include <ostream>
#include <string_view>

#include "apps/shardctl/text/output_buffer.h"
#include "apps/shardctl/text/printable.h"

namespace shard::app {

/// Ownership: borrows the stream. Threads: one. Lines arrive in large writes, the last when the sink goes.
class TextSink {
 public:
  explicit TextSink(std::ostream& out) : buffer_(out) {}

  /// A part of a line, shown as printable() has it. \pre it ends where a character ends
  void add(std::string_view text) {
    if (is_plain_ascii(text)) {
      buffer_.add(text);
    } else {
      buffer_.add(printable(text));
    }
  }
  template <class Integer>
  void add_number(Integer number) {
    buffer_.add_number(number);
  }
  void spaces(std::size_t count) {
    for (std::size_t i = 0; i < count; ++i) buffer_.add(' ');
  }
  void tab() { buffer_.add('\t'); }
  void end_line() { buffer_.add('\n'); }
  void line(std::string_view text) {
    add(text);
    end_line();
  }
  /// A text that consists of lines: its newlines and tabs are kept. For texts of our own, and for a value that is all
  /// that is printed.
  void lines(std::string_view text) {
    for (std::size_t end = 0; !text.empty(); text.remove_prefix(end)) {
      end = std::min(text.find_first_of("\n\t"), text.size());
      add(text.substr(0, end));
      if (end < text.size()) buffer_.add(text[end++]);
    }
  }
  /// `text` between an escape sequence of ours and its end; without `is_coloured` the text alone.
  void painted(std::string_view code, std::string_view text, bool is_coloured) {
    if (is_coloured) buffer_.add("\x1b["), buffer_.add(code), buffer_.add('m');
    add(text);
    if (is_coloured) buffer_.add("\x1b[0m");
  }
  /// Back to the begin of the line of a terminal, and nothing on it.
  void erase_line() { buffer_.add("\r\x1b[K"); }

 private:
  OutputBuffer buffer_;
};

}  // namespace shard::app
