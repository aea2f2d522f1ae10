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

/// Method: the first block of a file has `head_bytes`, in which its header is expected. A read that begins where an
/// earlier one ended continues a stream. Its block ends at the next multiple of the block size, and the next blocks
/// start. All other reads take only the bytes that they ask for, in steps of 64 KiB, because reads of many files in
/// turns, such as those of the pieces that ranks have of each tensor, would fetch each block many times over. Streams
/// share the memory, so many streams have shorter blocks. Blocks that were read to their end make room first, and then
/// the block that was used longest ago. Reading ahead takes free memory and that of blocks that were read to their end,
/// and nothing else. Threads: safe. Cost of a read: logarithmic in blocks. Small reads near each other take a whole
/// block.
class BlockCache {
 public:
  struct File {
    std::int64_t bytes, head_bytes;
    /// Fills `out`. Several threads call it.
    std::function<void(std::int64_t offset, std::span<std::byte> out)> fetch;
  };
  using FilePtr = std::shared_ptr<const File>;

  /// Keeps at most `memory_bytes`, but always one block. Fetches at most `connections` blocks of the full size at one
  /// time, and up to eight times as many smaller ones. `readers`: the number of threads that read different places at
  /// one time.
  BlockCache(std::int64_t memory_bytes, int connections, int readers);
  /// Waits for fetches, which the caller has stopped.
  ~BlockCache();
  BlockCache(const BlockCache&) = delete;
  BlockCache& operator=(const BlockCache&) = delete;

  /// The largest block, in bytes.
  std::int64_t block_bytes() const { return block_bytes_; }
  /// The bytes of blocks that are kept.
  std::int64_t memory_bytes() const { return memory_bytes_; }

  /// Fills all ranges, whose blocks are started first. \pre the ranges are inside the file
  /// \throws the exception of the fetch
  void read(const FilePtr& file, std::span<const RangedRead> ranges);
  /// Starts the blocks of [begin, end) for which there is room. \pre the range is inside the file
  void expect_read(const FilePtr& file, std::int64_t begin, std::int64_t end);
  /// Adds the head of a file that was read already.
  void put_head(const FilePtr& file, std::span<const std::byte> head);
  /// Starts to fetch the head, if there is room.
  void start_head(const FilePtr& file);
  /// Announces that [begin, end) need not be read. From now on, it is not read ahead.
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
    Buffer bytes{};
    std::int64_t unread;  ///< Bytes that reads are expected to take; 0 or less: all were taken.
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
    std::int64_t begin, end;            ///< The blocks that were reached have no gap.
    std::int64_t read_end, read_bytes;  ///< The last read.
    std::uint64_t last_use;
    bool is_long;    ///< It continues, so blocks are read ahead.
    bool is_at_end;  ///< The last block of the file was reached.
  };

  BlockPtr find(const File& file, std::int64_t offset) const;
  bool is_alone(const File& file, const RangedRead& range) const;
  bool follows(const File& file, const RangedRead& range);
  std::int64_t end_of_block(const File& file, std::int64_t offset, std::int64_t read_bytes) const;
  std::uint64_t window() const;
  std::int64_t recent_streams() const;
  std::int64_t room_for_streams() const;
  std::int64_t share_bytes() const;
  void park(const BlockPtr& block);
  void unpark(Block& block);
  void remove(const BlockPtr& block);
  bool is_stale(const Block& block) const;
  bool make_room(std::int64_t bytes, Purpose purpose);
  BlockPtr start(const FilePtr& file, std::int64_t offset, std::int64_t end, Purpose purpose);
  template <class EndOf>
  void start_all(const FilePtr& file, std::int64_t begin, std::int64_t end, const EndOf& end_of_next);
  bool is_continued(const Block& block, const RangedRead& range);
  bool is_active(const Stream& stream) const;
  void join(const Stream& stream);
  bool has_passed(const Stream& stream, const File* file, std::int64_t offset) const;
  void read_on(const FilePtr& file, const Block& block, std::int64_t read_bytes);
  bool is_expected(const File& file, std::int64_t offset) const;
  void copy_range(Lock& lock, const FilePtr& file, const RangedRead& range, bool is_whole);
  void release(const BlockPtr& block);
  bool has_work() const;
  void run();

  const int connections_, readers_;
  const std::int64_t memory_bytes_, block_bytes_;
  std::mutex mutex_;
  std::condition_variable changed_, work_;  ///< A block is ready or released; a block waits to be fetched.
  std::map<Key, BlockPtr> blocks_;          ///< By begin. No two overlap.
  Blocks read_, unread_;                    ///< Blocks that may be removed, those used longest ago first.
  Buffer spare_;                            ///< The memory of the last removed block of the full size.
  std::deque<BlockPtr> heads_, queue_;
  std::int64_t held_bytes_ = 0;
  std::vector<Stream> streams_;             ///< At most kMostStreams.
  std::map<Key, std::int64_t> unexpected_;  ///< The ends of ranges that need not be read, by their begins.
  std::uint64_t uses_ = 0;                  ///< The number of blocks that streams reached.
  int idle_ = 0;                            ///< Threads without work.
  std::int64_t fetching_bytes_ = 0;         ///< Blocks of queue_ that are being fetched.
  bool is_closing_ = false;
  std::vector<std::jthread> threads_;
};

}  // namespace shard::stores
