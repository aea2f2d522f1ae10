#include "libshard/stores/remote/block_cache.h"

#include <algorithm>
#include <cstring>

namespace shard::stores {

namespace {

constexpr std::int64_t kLargestBlock = 4 << 20, kSmallestBlock = 64 << 10, kLeastBlocks = 8;

}  // namespace

BlockCache::BlockCache(std::int64_t memory_bytes, int connections)
    : memory_bytes_(memory_bytes),
      block_bytes_(std::clamp(memory_bytes / kLeastBlocks, kSmallestBlock, kLargestBlock)),
      connections_(std::max(1, connections)) {}

BlockCache::~BlockCache() {
  {
    const std::scoped_lock lock(mutex_);
    is_closing_ = true;
    queue_.clear();
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

/// Removes the blocks that were used longest ago until `bytes` fit. \returns whether they do
bool BlockCache::make_room(std::int64_t bytes) {
  while (held_bytes_ > 0 && held_bytes_ + bytes > memory_bytes_) {
    auto oldest = blocks_.end();
    for (auto each = blocks_.begin(); each != blocks_.end(); ++each) {
      if (each->second->state == State::kWaiting || each->second->readers > 0) continue;
      if (oldest == blocks_.end() || each->second->last_use < oldest->second->last_use) oldest = each;
    }
    if (oldest == blocks_.end()) return false;
    held_bytes_ -= oldest->second->end - oldest->second->begin;
    blocks_.erase(oldest);
  }
  return true;
}

/// The block that contains `offset`; null if it is new and there is no room for it.
BlockCache::BlockPtr BlockCache::start(const FilePtr& file, std::int64_t offset) {
  const auto [begin, end] = block_at(*file, offset);
  if (BlockPtr known = find(*file, begin)) {
    known->last_use = ++uses_;  // A block that was read ahead is kept longer than one that was read before.
    return known;
  }
  if (!make_room(end - begin)) return nullptr;
  auto block = std::make_shared<Block>(Block{.file = file, .begin = begin, .end = end});
  block->last_use = ++uses_;
  blocks_.emplace(Key(file.get(), begin), block);
  held_bytes_ += end - begin;
  queue_.push_back(block);
  if (idle_ < std::ssize(queue_) && std::ssize(threads_) < connections_) threads_.emplace_back([this] { run(); });
  changed_.notify_all();
  return block;
}

/// Starts the blocks after `block` if the one before it is in memory.
void BlockCache::read_on(const FilePtr& file, const Block& block) {
  if (block.begin == 0 || block.end == file->bytes) return;
  if (find(*file, block_at(*file, block.begin - 1).first) == nullptr) return;
  const std::int64_t ahead =
      std::min<std::int64_t>(connections_, std::max<std::int64_t>(1, memory_bytes_ / block_bytes_ - 2));
  std::int64_t at = block.end;
  for (std::int64_t i = 0; i < ahead && at < file->bytes; ++i) {
    const BlockPtr next = start(file, at);
    if (next == nullptr) return;
    at = next->end;
  }
}

void BlockCache::release(Block& block) {
  if (--block.readers > 0) return;
  if (block.state == State::kFailed && blocks_.erase(Key(block.file.get(), block.begin)) > 0) {
    held_bytes_ -= block.end - block.begin;  // A later read tries again.
  }
  changed_.notify_all();
}

void BlockCache::copy_range(Lock& lock, const FilePtr& file, const RangedRead& range) {
  std::size_t done = 0;
  while (done < range.out.size()) {
    const std::int64_t at = range.offset_bytes + static_cast<std::int64_t>(done);
    BlockPtr block = start(file, at);
    if (block == nullptr) {  // All memory is in use by other reads, which end.
      changed_.wait(lock);
      continue;
    }
    ++block->readers;
    read_on(file, *block);
    changed_.wait(lock, [&] { return block->state != State::kWaiting; });
    if (block->state == State::kFailed) {
      const std::exception_ptr failure = block->failure;
      release(*block);
      std::rethrow_exception(failure);
    }
    const std::size_t count = std::min(range.out.size() - done, static_cast<std::size_t>(block->end - at));
    lock.unlock();
    std::memcpy(range.out.data() + done, block->bytes.data() + (at - block->begin), count);
    lock.lock();
    release(*block);
    done += count;
  }
}

void BlockCache::read(const FilePtr& file, std::span<const RangedRead> ranges) {
  Lock lock(mutex_);
  if (ranges.size() > 1) {
    for (const RangedRead& range : ranges) {
      if (!range.out.empty() && start(file, range.offset_bytes) == nullptr) break;
    }
  }
  for (const RangedRead& range : ranges) copy_range(lock, file, range);
}

void BlockCache::put_head(const FilePtr& file, std::vector<std::byte> head) {
  const Lock lock(mutex_);
  const std::int64_t bytes = std::ssize(head);
  if (bytes == 0 || find(*file, 0) != nullptr || !make_room(bytes)) return;
  auto block = std::make_shared<Block>(Block{.file = file, .begin = 0, .end = bytes});
  block->bytes = std::move(head);
  block->state = State::kReady;
  block->last_use = ++uses_;
  held_bytes_ += bytes;
  blocks_.emplace(Key(file.get(), 0), std::move(block));
}

void BlockCache::start_head(const FilePtr& file) {
  const Lock lock(mutex_);
  if (file->bytes > 0) start(file, 0);
}

void BlockCache::run() {
  Lock lock(mutex_);
  for (;;) {
    ++idle_;
    changed_.wait(lock, [&] { return is_closing_ || !queue_.empty(); });
    --idle_;
    if (is_closing_) return;
    const BlockPtr block = std::move(queue_.front());
    queue_.pop_front();
    lock.unlock();
    std::exception_ptr failure;
    try {
      block->bytes.resize(static_cast<std::size_t>(block->end - block->begin));
      block->file->fetch(block->begin, block->bytes);
    } catch (...) {
      failure = std::current_exception();
    }
    lock.lock();
    block->failure = failure;
    block->state = failure ? State::kFailed : State::kReady;
    if (failure && block->readers == 0 && blocks_.erase(Key(block->file.get(), block->begin)) > 0) {
      held_bytes_ -= block->end - block->begin;  // It was only read ahead.
    }
    changed_.notify_all();
  }
}

}  // namespace shard::stores
