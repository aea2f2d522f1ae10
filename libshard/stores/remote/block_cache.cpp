#include "libshard/stores/remote/block_cache.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "libshard/stores/remote/place.h"

namespace shard::stores {

namespace {

constexpr std::int64_t kLargestBlock = 4 << 20, kSmallestBlock = 64 << 10;
constexpr std::ptrdiff_t kHeadsPerFetch = 8;  ///< A head takes a round trip, and hardly any bandwidth.

/// The block size with which each connection has a block, and each reader the one that it reads and the one before.
std::int64_t block_size(std::int64_t memory_bytes, int connections, int readers) {
  const std::int64_t share = memory_bytes / (connections + 2 * readers);
  return std::clamp(share - share % kSmallestBlock, kSmallestBlock, kLargestBlock);
}

}  // namespace

BlockCache::BlockCache(std::int64_t memory_bytes, int connections, int readers)
    : connections_(std::max(1, connections)),
      readers_(std::max(1, readers)),
      memory_bytes_(memory_bytes),
      block_bytes_(block_size(memory_bytes, connections_, readers_)) {}

BlockCache::~BlockCache() {
  {
    const std::scoped_lock lock(mutex_);
    is_closing_ = true;
  }
  changed_.notify_all();
}

std::pair<std::int64_t, std::int64_t> BlockCache::block_at(const File& file, std::int64_t offset) const {
  if (offset < file.head_bytes) return {0, file.head_bytes};
  const std::int64_t index = offset / block_bytes_;
  return {std::max(file.head_bytes, index * block_bytes_), std::min(file.bytes, (index + 1) * block_bytes_)};
}

BlockCache::BlockPtr BlockCache::find(const File& file, std::int64_t begin) const {
  const auto found = blocks_.find(Key(&file, begin));
  return found == blocks_.end() ? nullptr : found->second;
}

/// Adds a block that is ready and has no readers to those that may be removed, as the one used last.
void BlockCache::park(const BlockPtr& block) {
  unpark(*block);
  block->parked_in = block->unread > 0 ? &unread_ : &read_;
  block->place = block->parked_in->insert(block->parked_in->end(), block);
}

void BlockCache::unpark(Block& block) {
  if (block.parked_in != nullptr) std::exchange(block.parked_in, nullptr)->erase(block.place);
}

void BlockCache::remove(const BlockPtr& block) {
  unpark(*block);
  if (blocks_.erase(Key(block->file.get(), block->begin)) == 0) return;
  held_bytes_ -= block->size();
  if (block->size() == block_bytes_ && block->bytes != nullptr) spare_ = std::move(block->bytes);
}

/// Removes blocks until `bytes` fit. \returns whether they do
bool BlockCache::make_room(std::int64_t bytes, Purpose purpose) {
  while (held_bytes_ > 0 && held_bytes_ + bytes > memory_bytes_) {
    if (!read_.empty()) {
      remove(BlockPtr(read_.front()));
    } else if (purpose == Purpose::kRead && !unread_.empty()) {
      remove(BlockPtr(unread_.front()));
    } else {
      return false;
    }
  }
  return true;
}

/// The block that contains `offset`; null if it is new and there is no room for it.
BlockCache::BlockPtr BlockCache::start(const FilePtr& file, std::int64_t offset, Purpose purpose) {
  const auto [begin, end] = block_at(*file, offset);
  if (BlockPtr known = find(*file, begin)) return known;
  if (!make_room(end - begin, purpose)) return nullptr;
  auto block = std::make_shared<Block>(Block{.file = file, .begin = begin, .end = end, .unread = end - begin});
  const bool has_spare = block->size() == block_bytes_ && spare_ != nullptr;
  block->bytes = has_spare ? std::move(spare_)
                           : std::make_unique_for_overwrite<std::byte[]>(static_cast<std::size_t>(block->size()));
  blocks_.emplace(Key(file.get(), begin), block);
  held_bytes_ += block->size();
  (block->size() <= kHeadBytes ? heads_ : queue_).push_back(block);
  const bool is_full = std::ssize(threads_) >= connections_ * (heads_.empty() ? 1 : kHeadsPerFetch);
  if (idle_ < std::ssize(heads_) + std::ssize(queue_) && !is_full) threads_.emplace_back([this] { run(); });
  changed_.notify_all();
  return block;
}

/// Starts the blocks after `block` if the one before it is in memory.
void BlockCache::read_on(const FilePtr& file, const Block& block) {
  if (block.begin == 0 || block.end == file->bytes) return;
  if (find(*file, block_at(*file, block.begin - 1).first) == nullptr) return;
  const std::int64_t ahead =
      std::clamp<std::int64_t>(memory_bytes_ / block_bytes_ - std::int64_t{2} * readers_, 1, connections_);
  std::int64_t at = block.end;
  std::vector<BlockPtr> next;
  while (std::ssize(next) < ahead && at < file->bytes) {
    next.push_back(start(file, at, Purpose::kReadAhead));
    if (next.back() == nullptr) break;
    at = next.back()->end;
  }
  if (!next.empty() && next.back() == nullptr) next.pop_back();
  // The nearest block is needed first, so it counts as used last.
  for (auto each = next.rbegin(); each != next.rend(); ++each) {
    if ((*each)->parked_in != nullptr) park(*each);
  }
}

void BlockCache::release(const BlockPtr& block) {
  if (--block->readers > 0) return;
  if (block->state == State::kFailed) {
    remove(block);  // A later read tries again.
  } else {
    park(block);
  }
  changed_.notify_all();
}

void BlockCache::copy_range(Lock& lock, const FilePtr& file, const RangedRead& range) {
  std::size_t done = 0;
  while (done < range.out.size()) {
    const std::int64_t at = range.offset_bytes + static_cast<std::int64_t>(done);
    const BlockPtr block = start(file, at, Purpose::kRead);
    if (block == nullptr) {  // All memory is in use by other reads, which end.
      changed_.wait(lock);
      continue;
    }
    ++block->readers;
    unpark(*block);
    read_on(file, *block);
    changed_.wait(lock, [&] { return block->state != State::kWaiting; });
    if (block->state == State::kFailed) {
      const std::exception_ptr failure = block->failure;
      release(block);
      std::rethrow_exception(failure);
    }
    const std::size_t count = std::min(range.out.size() - done, static_cast<std::size_t>(block->end - at));
    lock.unlock();
    std::memcpy(range.out.data() + done, block->bytes.get() + (at - block->begin), count);
    lock.lock();
    block->unread -= static_cast<std::int64_t>(count);
    release(block);
    done += count;
  }
}

void BlockCache::read(const FilePtr& file, std::span<const RangedRead> ranges) {
  Lock lock(mutex_);
  if (ranges.size() > 1) {
    for (const RangedRead& range : ranges) {
      if (!range.out.empty() && start(file, range.offset_bytes, Purpose::kReadAhead) == nullptr) break;
    }
  }
  for (const RangedRead& range : ranges) copy_range(lock, file, range);
}

void BlockCache::put_head(const FilePtr& file, std::span<const std::byte> head) {
  const Lock lock(mutex_);
  const std::int64_t bytes = std::ssize(head);
  if (bytes == 0 || find(*file, 0) != nullptr || !make_room(bytes, Purpose::kRead)) return;
  auto block = std::make_shared<Block>(Block{.file = file, .begin = 0, .end = bytes, .unread = bytes});
  block->bytes = std::make_unique_for_overwrite<std::byte[]>(head.size());
  std::ranges::copy(head, block->bytes.get());
  block->state = State::kReady;
  held_bytes_ += bytes;
  blocks_.emplace(Key(file.get(), 0), block);
  park(block);
}

void BlockCache::start_head(const FilePtr& file) {
  const Lock lock(mutex_);
  if (file->bytes > 0) start(file, 0, Purpose::kReadAhead);
}

bool BlockCache::has_work() const { return !heads_.empty() || (!queue_.empty() && fetching_ < connections_); }

void BlockCache::run() {
  Lock lock(mutex_);
  for (;;) {
    ++idle_;
    changed_.wait(lock, [&] { return is_closing_ || has_work(); });
    --idle_;
    if (is_closing_) return;
    const bool is_head = !heads_.empty();
    std::deque<BlockPtr>& queue = is_head ? heads_ : queue_;
    const BlockPtr block = std::move(queue.front());
    queue.pop_front();
    fetching_ += is_head ? 0 : 1;
    lock.unlock();
    std::exception_ptr failure;
    try {
      block->file->fetch(block->begin, {block->bytes.get(), static_cast<std::size_t>(block->size())});
    } catch (...) {
      failure = std::current_exception();
    }
    lock.lock();
    fetching_ -= is_head ? 0 : 1;
    block->failure = failure;
    block->state = failure ? State::kFailed : State::kReady;
    if (failure && block->readers == 0) remove(block);  // It was only read ahead.
    if (!failure && block->readers == 0) park(block);
    changed_.notify_all();
  }
}

}  // namespace shard::stores
