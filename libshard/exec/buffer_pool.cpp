#include "libshard/exec/buffer_pool.h"

#include <new>

#include "libshard/core/pages.h"

namespace shard {

namespace {

/// Large buffers use huge pages. Elements that are put in order are written to thousands of rows in turn, and with
/// small pages each of those rows would be on a separate page. All begin at a page, because a read past the page cache
/// (FUSE) is sent in requests of a number of pages, and would otherwise need one more.
std::byte* allocate(std::int64_t bytes) {
  constexpr std::size_t kPage = 4096;
  const auto wanted = static_cast<std::size_t>(bytes);
  const std::size_t alignment = wanted < 2 * kHugePage ? kPage : kHugePage;
  const std::size_t whole = wanted / alignment * alignment;
  void* const data = std::aligned_alloc(alignment, whole == wanted ? wanted : whole + alignment);
  if (data == nullptr) throw std::bad_alloc();
  prefer_huge_pages(data, whole);
  return static_cast<std::byte*>(data);
}

}  // namespace

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
    data_.reset(allocate(bytes));
  }
  return {data_.get(), static_cast<std::size_t>(bytes)};
}

void Buffer::release() {
  data_.reset();
  if (size_ != 0) pool_.give_back(size_);
  size_ = 0;
}

}  // namespace shard
