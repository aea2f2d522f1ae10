/// \file
/// Text for people. TextSink escapes all text that is added, so no caller can forget to. Only this class writes
/// newlines, tabs and colours.
#pragma once

#include <charconv>
#include <ostream>
#include <string_view>
#include <vector>

#include "apps/shardctl/text/printable.h"

namespace shard::app {

/// A buffer in front of a stream: turns many short lines into few large writes. Ownership: borrows the stream. Threads:
/// one. Bytes that a closed pipe refuses are dropped; the stream's state shows this.
class OutputBuffer {
 public:
  explicit OutputBuffer(std::ostream& out) : out_(out), buffer_(kBytes) {}
  ~OutputBuffer() { flush(); }
  OutputBuffer(const OutputBuffer&) = delete;
  OutputBuffer& operator=(const OutputBuffer&) = delete;

  void add(char c) {
    if (used_ == kBytes) flush();
    buffer_[used_++] = c;
  }
  void add(std::string_view text) {
    if (text.size() > kBytes - used_) flush();
    if (text.size() > kBytes) {
      out_.write(text.data(), static_cast<std::streamsize>(text.size()));
      return;
    }
    used_ += text.copy(buffer_.data() + used_, text.size());
  }
  template <class Integer>
  void add_number(Integer number) {
    if (kBytes - used_ < 32) flush();
    char* const begin = buffer_.data() + used_;
    used_ += static_cast<std::size_t>(std::to_chars(begin, begin + 32, number).ptr - begin);
  }
  void flush() {
    if (used_ > 0 && out_.good()) {
      out_.write(buffer_.data(), static_cast<std::streamsize>(used_));
      out_.flush();
    }
    used_ = 0;
  }

 private:
  static constexpr std::size_t kBytes = 1 << 16;
  std::ostream& out_;
  std::vector<char> buffer_;
  std::size_t used_ = 0;
};

/// Ownership: borrows the stream. Threads: one. Lines are written in large blocks, the last one by the destructor.
class TextSink {
 public:
  explicit TextSink(std::ostream& out) : buffer_(out) {}

  /// Adds a part of a line, escaped by printable(). \pre it ends at the end of a character
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
  /// Adds a text of several lines. Its newlines and tabs are kept. Only for our own texts, and for a value that is the
  /// whole output.
  void lines(std::string_view text) {
    for (std::size_t end = 0; !text.empty(); text.remove_prefix(end)) {
      end = std::min(text.find_first_of("\n\t"), text.size());
      add(text.substr(0, end));
      if (end < text.size()) buffer_.add(text[end++]);
    }
  }
  /// Adds `text` between our escape sequence and its end; without `is_coloured`, only the text.
  void painted(std::string_view code, std::string_view text, bool is_coloured) {
    if (is_coloured) buffer_.add("\x1b["), buffer_.add(code), buffer_.add('m');
    add(text);
    if (is_coloured) buffer_.add("\x1b[0m");
  }
  /// Writes the buffered text to the stream, before others write to it.
  void flush() { buffer_.flush(); }
  /// Returns to the start of the terminal's line and erases the line.
  void erase_line() { buffer_.add("\r\x1b[K"); }

 private:
  OutputBuffer buffer_;
};

}  // namespace shard::app
