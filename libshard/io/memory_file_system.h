/// \file
/// The file system's twin for tests: folders and files in memory, every call counted, the n-th made to fail.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "libshard/io/file_system.h"

namespace shard {

/// Threads: safe. What was written but not synced is kept apart, so that `crash()` can forget it.
std::unique_ptr<FileSystem> make_memory_file_system(std::shared_ptr<struct MemoryState> state);

/// What a test looks at and turns.
struct MemoryState {
  MemoryState();
  ~MemoryState();
  /// Fails call number `call` (from 0) and, when `persistent`, all after it. Negative: none.
  void fail_at(std::int64_t call, bool persistent = false);
  std::int64_t calls() const;                   ///< Calls so far, reads included.
  std::vector<std::string> log() const;         ///< "create /x", "write /x 0 4", "sync /x", "rename /a /b", ...
  std::vector<std::string> paths() const;       ///< All files and folders, sorted.
  std::vector<std::byte> content(const std::string& path) const;
  void put(const std::string& path, std::span<const std::byte> content);  ///< Makes parents.
  int open_files() const;                       ///< Handles not yet destroyed.

  struct Impl;
  std::unique_ptr<Impl> impl;
};

}  // namespace shard
