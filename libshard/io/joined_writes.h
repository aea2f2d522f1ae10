/// \file JoinedWrites: joins small adjacent writes in a file to long ones.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "libshard/io/file_writer.h"

namespace shard {

/// Memory: 256 KiB and the longest added text. Threads: one. Text that was not flushed is lost.
class JoinedWrites {
 public:
  explicit JoinedWrites(FileWriter& file, std::int64_t begin = 0) : file_(file), begin_(begin) {}

  void add(std::int64_t offset, std::string_view bytes) {
    if (offset != end()) {
      flush();
      begin_ = offset;
    }
    append(bytes);
  }
  /// Appends directly after the last added text, or at `begin`.
  void append(std::string_view bytes) {
    if (buffer_.size() >= kLimit) flush();
    buffer_ += bytes;
  }
  void flush() {
    if (!buffer_.empty()) file_.write_at(begin_, std::as_bytes(std::span(buffer_)));
    begin_ = end();
    buffer_.clear();
  }
  std::int64_t end() const { return begin_ + static_cast<std::int64_t>(buffer_.size()); }

 private:
  static constexpr std::size_t kLimit = 1 << 18;
  FileWriter& file_;
  std::int64_t begin_;
  std::string buffer_;
};

}  // namespace shard
