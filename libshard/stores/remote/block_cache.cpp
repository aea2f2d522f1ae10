#include "libshard/stores/remote/block_cache.h"

#include <algorithm>
#include <cstring>
#include <iterator>

#include "libshard/core/checked.h"
#include "libshard/core/parallel.h"
#include "libshard/stores/remote/place.h"

namespace shard::stores {

namespace {

constexpr std::int64_t kLargestBlock = 8 << 20, kSmallestBlock = 64 << 10;
constexpr std::int64_t kFar = 256 << 10;  ///< Small reads at this distance from each other take small blocks.
constexpr std::size_t kMostStreams = 128;
constexpr std::uint64_t kRecentBlocks = 16;   ///< A stream is active if it reached one of the last blocks.
constexpr std::uint64_t kStaleBlocks = 64;    ///< After this many others, a block of few streams will not be read.
constexpr std::int64_t kFewStreams = 8;       ///< With more, all recent ones are expected to continue.
constexpr std::ptrdiff_t kSmallPerLarge = 8;  ///< A small block takes a round trip, and hardly any bandwidth.

/// The block size with which each connection has a block, and each reader the one that it reads and the one before.
std::int64_t block_size(std::int64_t memory_bytes, int connections, int readers) {
  const std::int64_t share = memory_bytes / (connections + 2 * readers);
  return std::clamp(share - share % kSmallestBlock, kSmallestBlock, kLargestBlock);
}

std::int64_t end_of(const RangedRead& range) { return range.offset_bytes + std::ssize(range.out); }

/// Whether a range begins in the head and has a little more. The rest of a header is read, not what follows it.
bool ends_beyond_head(const BlockCache::File& file, const RangedRead& range) {
  const std::int64_t beyond = end_of(range) - file.head_bytes;
  return range.offset_bytes < file.head_bytes && beyond > 0 && beyond <= kFar;
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
  work_.notify_all();
}

/// The block in memory, or under way, that contains `offset`; null if there is none.
BlockCache::BlockPtr BlockCache::find(const File& file, std::int64_t offset) const {
  const auto after = blocks_.upper_bound(Key(&file, offset));
  if (after == blocks_.begin()) return nullptr;
  const auto& [key, block] = *std::prev(after);
  return key.first == &file && offset < block->end ? block : nullptr;
}

/// Whether a range is small and no block near it is in memory.
bool BlockCache::is_alone(const File& file, const RangedRead& range) const {
  if (std::ssize(range.out) > kSmallestBlock || range.offset_bytes < file.head_bytes) return false;
  const std::int64_t before = range.offset_bytes - kFar;
  if (before >= file.head_bytes && find(file, before) != nullptr) return false;
  if (find(file, range.offset_bytes / kSmallestBlock * kSmallestBlock - 1) != nullptr) return false;
  const auto near = blocks_.lower_bound(Key(&file, std::max(before, file.head_bytes)));
  return near == blocks_.end() || near->first.first != &file || near->first.second - end_of(range) >= kFar;
}

/// Whether a range begins where the last read of a stream ended, or shortly after. It is that stream's last read then.
bool BlockCache::follows(const File& file, const RangedRead& range) {
  const auto stream = std::ranges::find_if(streams_, [&](const Stream& each) {
    const std::int64_t gap = range.offset_bytes - each.read_end;
    return each.file == &file && 0 <= gap && gap < kSmallestBlock;
  });
  if (stream == streams_.end()) return false;
  stream->read_end = end_of(range);
  stream->read_bytes = std::ssize(range.out);
  return true;
}

/// The end of a new block of a stream that contains `offset`. Each of many streams is expected to continue with as many
/// bytes as the read before.
std::int64_t BlockCache::end_of_block(const File& file, std::int64_t offset, std::int64_t read_bytes) const {
  const std::int64_t expected = std::max(share_bytes() - offset % kSmallestBlock, read_bytes);
  return offset + std::min({file.bytes - offset, block_bytes_ - offset % block_bytes_, expected});
}

/// After this many other blocks, a block or a stream is not expected to be read further. Streams that are read in turns
/// reach a few blocks each before the first one continues.
std::uint64_t BlockCache::window() const { return std::max<std::uint64_t>(kStaleBlocks, 4 * streams_.size()); }

std::int64_t BlockCache::recent_streams() const {
  return std::ranges::count_if(streams_,
                               [&](const Stream& each) { return !each.is_at_end && uses_ - each.last_use < window(); });
}

/// Memory for the blocks of streams, beside those that are being read.
std::int64_t BlockCache::room_for_streams() const {
  return std::max(block_bytes_, memory_bytes_ - std::int64_t{2} * readers_ * block_bytes_);
}

/// The largest block of each stream, because all streams have one that is read and one after it.
std::int64_t BlockCache::share_bytes() const {
  const std::int64_t share = room_for_streams() / (2 * std::max<std::int64_t>(1, recent_streams()));
  return std::clamp(share / kSmallestBlock * kSmallestBlock, kSmallestBlock, block_bytes_);
}

/// Adds a block that is ready and has no readers to those that may be removed, as the one used last.
void BlockCache::park(const BlockPtr& block) {
  unpark(*block);
  block->last_use = uses_;
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

/// Whether the streams have reached so many other blocks since a block was used that its own stream must have stopped.
bool BlockCache::is_stale(const Block& block) const {
  const std::uint64_t since = uses_ - block.last_use;
  const std::int64_t others = std::max<std::int64_t>(readers_, recent_streams());
  return since > window() || since > 4 * static_cast<std::uint64_t>(others);
}

/// Removes blocks until `bytes` fit. \returns whether they do
bool BlockCache::make_room(std::int64_t bytes, Purpose purpose) {
  while (held_bytes_ > 0 && held_bytes_ + bytes > memory_bytes_) {
    if (!read_.empty()) {
      remove(BlockPtr(read_.front()));
    } else if (!unread_.empty() && (purpose == Purpose::kRead || is_stale(*unread_.front()))) {
      remove(BlockPtr(unread_.front()));
    } else {
      return false;
    }
  }
  return true;
}

/// Returns the block that contains `offset`, and starts it if it is new. Null: there is no room. A new block ends at
/// `end`, or before the next block. All bytes before `end` are expected to be read.
BlockCache::BlockPtr BlockCache::start(const FilePtr& file, std::int64_t offset, std::int64_t end, Purpose purpose) {
  if (BlockPtr known = find(*file, offset)) return known;
  const bool is_head = offset < file->head_bytes;
  const std::int64_t step = offset / kSmallestBlock * kSmallestBlock;
  const std::int64_t wanted = std::min(ceil_div(end - step, kSmallestBlock) * kSmallestBlock, block_bytes_);
  std::int64_t begin = is_head ? 0 : std::max(file->head_bytes, step);
  std::int64_t stop = is_head ? file->head_bytes : step + std::min(file->bytes - step, wanted);  // Sizes may be 2^63-1.
  const auto next = blocks_.upper_bound(Key(file.get(), offset));
  if (next != blocks_.end() && next->first.first == file.get()) stop = std::min(stop, next->first.second);
  if (const BlockPtr before = find(*file, begin)) begin = before->end;
  if (!make_room(stop - begin, purpose)) return nullptr;
  auto block = std::make_shared<Block>(Block{.file = file, .begin = begin, .end = stop, .unread = stop - begin});
  if (!is_head) block->unread = std::min(stop, end) - offset;
  const bool has_spare = block->size() == block_bytes_ && spare_ != nullptr;
  block->bytes = has_spare ? std::move(spare_)
                           : std::make_unique_for_overwrite<std::byte[]>(static_cast<std::size_t>(block->size()));
  blocks_.emplace(Key(file.get(), begin), block);
  held_bytes_ += block->size();
  std::deque<BlockPtr>& queue = block->size() <= kHeadBytes ? heads_ : queue_;
  queue.push_back(block);
  const bool is_full = std::ssize(threads_) >= connections_ * kSmallPerLarge;
  try {
    if (has_work() && idle_ < std::ssize(heads_) + std::ssize(queue_) && !is_full)
      add_thread(threads_, [this] { run(); });
  } catch (...) {  // Nothing would fetch it.
    queue.pop_back();
    remove(block);
    throw;
  }
  work_.notify_one();
  return block;
}

/// Starts to fetch [begin, end) block by block, and stops if memory runs out. `end_of_next` returns the end of a new
/// block from its begin.
template <class EndOf>
void BlockCache::start_all(const FilePtr& file, std::int64_t begin, std::int64_t end, const EndOf& end_of_next) {
  for (std::int64_t at = begin; at < end;) {
    const BlockPtr block = start(file, at, end_of_next(at), Purpose::kReadAhead);
    if (block == nullptr) return;
    at = block->end;
  }
}

/// Whether a read that reached `block` continues a stream.
bool BlockCache::is_continued(const Block& block, const RangedRead& range) {
  if (block.size() <= 2 * kSmallestBlock || block.begin == 0) return false;
  const File* const file = block.file.get();
  const bool is_at_end = block.end == file->bytes;
  auto oldest = streams_.end();
  for (auto each = streams_.begin(); each != streams_.end(); ++each) {
    if (each->file == file && each->end == block.end) return each->is_long;
    if (each->file == file && each->begin <= block.begin && block.begin <= each->end && each->end < block.end) {
      *each = {file, each->begin, block.end, each->read_end, each->read_bytes, ++uses_, true, is_at_end};
      join(*each);
      return true;
    }
    if (has_passed(*each, file, block.begin)) return true;
    if (each->file == file && block.begin <= each->begin && each->begin <= block.end && block.end < each->end) {
      each->begin = block.begin;
      return each->is_long;
    }
    if (oldest == streams_.end() || each->last_use < oldest->last_use) oldest = each;
  }
  if (streams_.size() < kMostStreams) oldest = streams_.insert(streams_.end(), Stream{});
  *oldest = {file, block.begin, block.end, end_of(range), std::ssize(range.out), ++uses_, false, is_at_end};
  return false;
}

/// Whether a stream is expected to continue.
bool BlockCache::is_active(const Stream& stream) const {
  return stream.is_long && uses_ - stream.last_use < kRecentBlocks && !stream.is_at_end;
}

/// If a stream has reached the begin of another one, both are one stream, which continues at the other's end.
void BlockCache::join(const Stream& stream) {
  const auto next = std::ranges::find_if(streams_, [&stream](const Stream& each) {
    return each.file == stream.file && each.begin == stream.end && each.end > each.begin;
  });
  if (next == streams_.end()) return;
  next->begin = stream.begin;
  next->is_long = true;
  streams_.erase(streams_.begin() + (&stream - streams_.data()));
}

/// Whether an active stream has reached these bytes not long ago.
bool BlockCache::has_passed(const Stream& stream, const File* file, std::int64_t offset) const {
  constexpr auto kWindow = static_cast<std::int64_t>(kRecentBlocks);
  const bool is_inside = stream.file == file && stream.begin <= offset && offset < stream.end;
  return is_inside && stream.end - offset <= kWindow * block_bytes_ && is_active(stream);
}

/// Starts the blocks after `block`.
void BlockCache::read_on(const FilePtr& file, const Block& block, std::int64_t read_bytes) {
  const std::int64_t recent = recent_streams();
  const std::int64_t active =
      recent > kFewStreams ? recent
                           : std::ranges::count_if(streams_, [this](const Stream& each) { return is_active(each); });
  const std::int64_t room = room_for_streams() / share_bytes();
  const std::int64_t ahead = std::clamp<std::int64_t>(room / std::max<std::int64_t>(1, active), 1, connections_);
  // Blocks ahead of this many streams would be removed before they are read.
  if (recent > kFewStreams && read_bytes > 2 * share_bytes()) return;
  std::int64_t at = block.end;
  std::vector<BlockPtr> next;
  while (std::ssize(next) < ahead && at < file->bytes && is_expected(*file, at)) {
    if (std::ranges::any_of(streams_, [&](const Stream& each) { return has_passed(each, file.get(), at); })) break;
    next.push_back(start(file, at, end_of_block(*file, at, read_bytes), Purpose::kReadAhead));
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

/// \param is_whole  whether new blocks end as those of a stream do, not with the range
void BlockCache::copy_range(Lock& lock, const FilePtr& file, const RangedRead& range, bool is_whole) {
  std::size_t done = 0;
  while (done < range.out.size()) {
    const std::int64_t at = range.offset_bytes + static_cast<std::int64_t>(done);
    const std::int64_t end = is_whole ? end_of_block(*file, at, end_of(range) - at) : end_of(range);
    const BlockPtr block = start(file, at, end, Purpose::kRead);
    if (block == nullptr) {  // All memory is in use by other reads, which end.
      changed_.wait(lock);
      continue;
    }
    ++block->readers;
    unpark(*block);
    if (is_continued(*block, range)) read_on(file, *block, std::ssize(range.out));
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
    // The rest of a small block is rarely needed.
    block->unread = block->size() <= kSmallestBlock ? 0 : block->unread - static_cast<std::int64_t>(count);
    release(block);
    done += count;
  }
}

void BlockCache::read(const FilePtr& file, std::span<const RangedRead> ranges) {
  const auto is_far = [&](const RangedRead& a, const RangedRead& b) {
    return a.offset_bytes - end_of(b) >= kFar || b.offset_bytes - end_of(a) >= kFar;
  };
  Lock lock(mutex_);
  std::vector<bool> is_whole(ranges.size());
  for (std::size_t i = 0; i < ranges.size(); ++i) {
    const bool is_alone_here = is_alone(*file, ranges[i]) && (i == 0 || is_far(ranges[i - 1], ranges[i])) &&
                               (i + 1 == ranges.size() || is_far(ranges[i], ranges[i + 1]));
    const bool is_small = std::ssize(ranges[i].out) <= kSmallestBlock;
    is_whole[i] = !ends_beyond_head(*file, ranges[i]) && (is_small ? !is_alone_here : follows(*file, ranges[i]));
  }
  // Long ranges of several threads must not remove each other's blocks.
  const std::int64_t most = room_for_streams() / std::max<std::int64_t>(1, recent_streams());
  for (std::size_t i = 0; i < ranges.size(); ++i) {
    const std::int64_t end = ranges[i].offset_bytes + std::min(std::ssize(ranges[i].out), most);
    start_all(file, ranges[i].offset_bytes, end, [&](std::int64_t at) {
      return is_whole[i] ? end_of_block(*file, at, end_of(ranges[i]) - at) : end_of(ranges[i]);
    });
  }
  for (std::size_t i = 0; i < ranges.size(); ++i) copy_range(lock, file, ranges[i], is_whole[i]);
}

void BlockCache::expect_read(const FilePtr& file, std::int64_t begin, std::int64_t end) {
  const Lock lock(mutex_);
  start_all(file, begin, end, [end](std::int64_t) { return end; });
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
  if (file->bytes > 0) start(file, 0, file->head_bytes, Purpose::kReadAhead);
}

void BlockCache::expect_no_reads(const FilePtr& file, std::int64_t begin, std::int64_t end) {
  const Lock lock(mutex_);
  unexpected_[Key(file.get(), begin)] = end;
}

bool BlockCache::is_expected(const File& file, std::int64_t offset) const {
  const auto after = unexpected_.upper_bound(Key(&file, offset));
  if (after == unexpected_.begin()) return true;
  const auto& [begin, end] = *std::prev(after);
  return begin.first != &file || offset >= end;
}

bool BlockCache::has_work() const {
  return !heads_.empty() ||
         (!queue_.empty() && fetching_bytes_ + queue_.front()->size() <= connections_ * block_bytes_);
}

void BlockCache::run() {
  Lock lock(mutex_);
  for (;;) {
    ++idle_;
    work_.wait(lock, [&] { return is_closing_ || has_work(); });
    --idle_;
    if (is_closing_) return;
    const bool is_head = !heads_.empty();
    std::deque<BlockPtr>& queue = is_head ? heads_ : queue_;
    const BlockPtr block = std::move(queue.front());
    queue.pop_front();
    const std::int64_t counted = is_head ? 0 : block->size();
    fetching_bytes_ += counted;
    lock.unlock();
    std::exception_ptr failure;
    try {
      block->file->fetch(block->begin, {block->bytes.get(), static_cast<std::size_t>(block->size())});
    } catch (...) {
      failure = std::current_exception();
    }
    lock.lock();
    fetching_bytes_ -= counted;
    block->failure = failure;
    block->state = failure ? State::kFailed : State::kReady;
    if (failure && block->readers == 0) remove(block);  // It was only read ahead.
    if (!failure && block->readers == 0) park(block);
    changed_.notify_all();
  }
}

}  // namespace shard::stores
