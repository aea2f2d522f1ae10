/// \file
/// Keeps a job that is larger than the memory from pushing other programs' files out of the page cache. Its own pages
/// would not stay there either.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>

namespace shard {

inline constexpr std::int64_t kHalfOfMemory = -1;

/// From now on, this process drops the pages of long reads and writes after its first `bytes` of them. Only for
/// programs that end with their job, because others may read the same files again. Threads: any.
void spare_page_cache(std::int64_t bytes = kHalfOfMemory);

/// The memory that this process may use: the machine's, or the limit of one of its control groups. `read` returns a
/// file's text, or an empty one.
std::int64_t usable_memory(std::int64_t machine_bytes, const std::function<std::string(const std::string& path)>& read);

// For the files of libshard/io, which read and write through the page cache.

/// Drops the pages of one open file that is read or written, mostly from its front to its end. Threads: any.
class PassedPages {
 public:
  /// Called after a long read or write. \returns true if the pages are to be dropped. The caller should then start
  /// writing changed ones to the disk.
  bool add(int descriptor, std::int64_t offset_bytes, std::int64_t bytes);
  /// Called once before the file is closed. Pages that are not on the disk yet stay.
  void finish(int descriptor) const;

 private:
  std::atomic<std::int64_t> seen_{0};  ///< The end of the last read or write after which pages were dropped.
  std::atomic<bool> is_any_spared_{false};
};

}  // namespace shard
