/// \file FileWriter: a file of an output, with positioned writes. JoinedWrites: joins small ones.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "libshard/core/error.h"

namespace shard {

/// The error of read_back if there are no such bytes.
inline Error cannot_read_back() { return {ErrorCode::kResource, "cannot read back what was written"}; }

/// Threads: write_at may be called by several at once on disjoint ranges.
/// \throws Error kResource  from every member: the file cannot be written.
class FileWriter {
 public:
  virtual ~FileWriter() = default;  ///< Releases the file without a sync.
  virtual void write_at(std::int64_t offset_bytes, std::span<const std::byte> data) = 0;
  /// The bytes in this process's memory if the file has them there, otherwise empty. The caller fills them instead of a
  /// write, and they then count as written. Ownership: a view, as long as this. Threads: as write_at.
  virtual std::span<std::byte> in_memory(std::int64_t /*offset_bytes*/, std::size_t /*bytes*/) { return {}; }
  /// Fills `out` with the written bytes, from this run, a different rank or an earlier run. Threads: as write_at.
  /// \throws Error kResource  as above; the file ends too early, or this kind of file cannot be read back
  virtual void read_back(std::int64_t /*offset_bytes*/, std::span<std::byte> /*out*/) { throw cannot_read_back(); }
  /// Reserves space so that later writes cannot run out of it. If this is not supported, only sets the size. In a file
  /// system in memory, only sets the size if enough space is free.
  virtual void allocate(std::int64_t bytes) = 0;
  /// Announces that sync will be called. Bytes written after this may be sent to the disk at once, so that sync waits
  /// for less. \pre no write is in progress
  virtual void expect_sync() {}
  /// Forces data and metadata to disk. A failed sync must never be retried on the same file.
  virtual void sync() = 0;
  virtual void close() = 0;  ///< Closes the file. May throw, unlike the destructor.
  /// The kernel's descriptor for reflinks, or -1.
  virtual int descriptor() const { return -1; }
};

/// Joins small adjacent writes in a file to long ones. Memory: 256 KiB and the longest added text. Threads: one. Text
/// that was not flushed is lost.
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
