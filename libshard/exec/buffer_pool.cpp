#include "libshard/exec/buffer_pool.h"

namespace shard {

bool BufferPool::has_waiting() {
  const std::scoped_lock lock(mutex_);
  return turn_ != next_ticket_;
}

void BufferPool::take(std::int64_t bytes) {
  std::unique_lock lock(mutex_);
  const std::uint64_t ticket = next_ticket_++;
  changed_.wait(lock, [&] { return turn_ == ticket && (used_ == 0 || used_ + bytes <= limit_); });
  used_ += bytes;
  ++turn_;
  changed_.notify_all();
}

void BufferPool::give_back(std::int64_t bytes) {
  const std::scoped_lock lock(mutex_);
  used_ -= bytes;
  changed_.notify_all();
}

std::span<std::byte> Buffer::ensure(std::int64_t bytes) {
  if (bytes > size_ || pool_.has_waiting()) {
    release();
    pool_.take(bytes);
    size_ = bytes;
    data_ = std::make_unique_for_overwrite<std::byte[]>(static_cast<std::size_t>(bytes));
  }
  return {data_.get(), static_cast<std::size_t>(bytes)};
}

void Buffer::release() {
  data_.reset();
  if (size_ != 0) pool_.give_back(size_);
  size_ = 0;
}

}  // namespace shard
