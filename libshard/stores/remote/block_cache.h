/// \file BlockCache: bytes of remote files in blocks that are fetched by several threads at one time and kept for later
///   reads. Inside libshard/stores/remote only.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <thread>
#include <utility>
#include <vector>

#include "libshard/io/source_store.h"

namespace shard::stores {

/// Method: the first block of a file has `head_bytes`, in which its header is expected; the others end at multiples of
/// the block size. If reads reach a block after the one before it, the next blocks start, as many as there is room for
/// beside those of other such streams. Blocks that were read to their end make room first, and then the block that was
/// used longest ago. Reading ahead takes free memory and that of blocks that were read to their end, and nothing else.
/// Threads: safe. Cost of a read: logarithmic in blocks. A read of a few bytes far from all others takes a small block
/// in place of a whole one.
class BlockCache {
 public:
  struct File {
    std::int64_t bytes, head_bytes;
    /// Fills `out`. Several threads call it.
    std::function<void(std::int64_t offset, std::span<std::byte> out)> fetch;
  };
  using FilePtr = std::shared_ptr<const File>;

  /// Keeps at most `memory_bytes`, but always one block. Fetches at most `connections` blocks at one time, and more of
  /// at most kHeadBytes. `readers`: the number of threads that read different places at one time.
  BlockCache(std::int64_t memory_bytes, int connections, int readers);
  /// Waits for fetches, which the caller has stopped.
  ~BlockCache();
  BlockCache(const BlockCache&) = delete;
  BlockCache& operator=(const BlockCache&) = delete;

  /// A block of that many bytes: a file of this size is read whole.
  std::int64_t block_bytes() const { return block_bytes_; }

  /// Fills all ranges, whose blocks are started first. \pre the ranges are inside the file
  /// \throws the exception of the fetch
  void read(const FilePtr& file, std::span<const RangedRead> ranges);
  /// Adds the head of a file that was read already.
  void put_head(const FilePtr& file, std::span<const std::byte> head);
  /// Starts to fetch the head, if there is room.
  void start_head(const FilePtr& file);
  /// Announces that [begin, end) need not be read: nothing there is read ahead from now on.
  void expect_no_reads(const FilePtr& file, std::int64_t begin, std::int64_t end);

 private:
  enum class State { kWaiting, kReady, kFailed };
  using Buffer = std::unique_ptr<std::byte[]>;
  struct Block;
  using BlockPtr = std::shared_ptr<Block>;
  using Blocks = std::list<BlockPtr>;
  struct Block {
    FilePtr file;
    std::int64_t begin, end;
    bool is_small;  ///< In small_, not in blocks_.
    Buffer bytes{};
    std::int64_t unread;  ///< Bytes that no read has taken yet; 0 or less: all were taken.
    State state = State::kWaiting;
    std::exception_ptr failure{};
    int readers = 0;
    std::uint64_t last_use = 0;   ///< A value of uses_.
    Blocks* parked_in = nullptr;  ///< Null unless it may be removed.
    Blocks::iterator place{};     ///< In `parked_in`.

    std::int64_t size() const { return end - begin; }
  };
  using Key = std::pair<const File*, std::int64_t>;
  using Lock = std::unique_lock<std::mutex>;
  enum class Purpose { kRead, kReadAhead };
  /// Reads that go through a file.
  struct Stream {
    const File* file;
    std::int64_t begin, end;  ///< The blocks that were reached have no gap.
    std::uint64_t last_use;
    bool is_long;    ///< It continues, so blocks are read ahead.
    bool is_at_end;  ///< The last block of the file was reached.
  };

  std::pair<std::int64_t, std::int64_t> block_at(const File& file, std::int64_t offset, bool is_small) const;
  BlockPtr find(const File& file, std::int64_t offset) const;
  bool is_alone(const File& file, const RangedRead& range) const;
  void park(const BlockPtr& block);
  void unpark(Block& block);
  void remove(const BlockPtr& block);
  bool is_stale(const Block& block) const;
  bool make_room(std::int64_t bytes, Purpose purpose);
  BlockPtr start(const FilePtr& file, std::int64_t offset, Purpose purpose, bool is_small = false);
  bool is_continued(const Block& block, std::int64_t bytes);
  bool is_active(const Stream& stream) const;
  void join(const Stream& stream);
  bool has_passed(const Stream& stream, const File* file, std::int64_t offset) const;
  void read_on(const FilePtr& file, const Block& block);
  bool is_expected(const File& file, std::int64_t offset) const;
  void copy_range(Lock& lock, const FilePtr& file, const RangedRead& range, bool is_small);
  void release(const BlockPtr& block);
  bool has_work() const;
  void run();

  const int connections_, readers_;
  const std::int64_t memory_bytes_, block_bytes_;
  std::mutex mutex_;
  std::condition_variable changed_, work_;  ///< A block is ready or released; a block waits to be fetched.
  std::map<Key, BlockPtr> blocks_, small_;
  Blocks read_, unread_;  ///< Blocks that may be removed, those used longest ago first.
  Buffer spare_;          ///< The memory of the last removed block of the full size.
  std::deque<BlockPtr> heads_, queue_;
  std::int64_t held_bytes_ = 0;
  std::vector<Stream> streams_;             ///< At most kMostStreams.
  std::map<Key, std::int64_t> unexpected_;  ///< The ends of ranges that need not be read, by their begins.
  std::uint64_t uses_ = 0;                  ///< The number of blocks that streams reached.
  int idle_ = 0, fetching_ = 0;             ///< Threads without work; blocks of queue_ that are being fetched.
  bool is_closing_ = false;
  std::vector<std::jthread> threads_;
};

}  // namespace shard::stores
