/// \file
/// A buffer in front of a stream, so that many short lines become few large writes.
#pragma once

#include <charconv>
#include <cstring>
#include <ostream>
#include <string_view>
#include <vector>

namespace shard::app {

/// Ownership: borrows the stream. Threads: one. What a closed pipe refuses is dropped; the stream's state shows it.
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
    std::memcpy(buffer_.data() + used_, text.data(), text.size());
    used_ += text.size();
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

}  // namespace shard::app
