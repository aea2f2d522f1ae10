/// \file BufferPool: the only memory that workers use for large buffers. The sum of all buffers never exceeds a limit.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <span>

namespace shard {

/// Threads: safe. Requests are served in the order in which they were made, so that small requests cannot delay a large
/// one forever.
class BufferPool {
 public:
  explicit BufferPool(std::int64_t limit_bytes) : limit_(limit_bytes) {}
  std::int64_t limit_bytes() const { return limit_; }

 private:
  friend class Buffer;
  void take(std::int64_t bytes);
  void give_back(std::int64_t bytes);
  bool has_waiting();

  const std::int64_t limit_;
  std::int64_t used_ = 0;
  std::uint64_t next_ticket_ = 0, turn_ = 0;
  std::mutex mutex_;
  std::condition_variable changed_;
};

/// A worker's buffer. It is kept from tile to tile as long as it is large enough and no worker waits for memory.
class Buffer {
 public:
  explicit Buffer(BufferPool& pool) : pool_(pool) {}
  ~Buffer() { release(); }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  /// Provides at least `bytes`. The old content is lost. Waits until the pool has enough free memory.
  std::span<std::byte> ensure(std::int64_t bytes);
  /// Returns the memory to the pool.
  void release();

 private:
  struct Free {
    void operator()(std::byte* data) const { std::free(data); }
  };

  BufferPool& pool_;
  std::unique_ptr<std::byte[], Free> data_;
  std::int64_t size_ = 0;
};

}  // namespace shard
