/// \file
/// What all users of a disk in memory share, under one lock. Inside libshard/io only.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

#include "libshard/core/error.h"
#include "libshard/io/memory_disk.h"
#include "libshard/io/memory_nodes.h"

namespace shard {

/// Functions want `mutex` held.
struct MemoryState::Impl {
  mutable std::mutex mutex;
  static inline std::atomic<std::uint64_t> last_inode{0};  ///< Of all disks: two disks are two places.
  static inline std::atomic<std::int64_t> changes{0};
  NodePtr root = std::make_shared<Node>(Node{true, ++last_inode, {}, {}, {}, {}});
  std::int64_t calls = 0, fail_call = -1;
  bool persistent = false, no_exchange = false;
  std::vector<std::string> log;
  std::atomic<int> open_files{0};

  /// Counts a call and fails it when it is its turn.
  void tick(ErrorCode code, const std::string& path, const std::string& line);
  NodePtr find(const std::string& path) const;  ///< Null where there is none.
  /// \throws Error kExists
  NodePtr add(Node& folder, const std::string& path, bool is_folder);
};

}  // namespace shard
