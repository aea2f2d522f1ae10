/// \file
/// A file system in memory for tests. It counts every call and can fail the n-th.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "libshard/io/local_disk.h"

namespace shard {

/// The disk's content and log for tests to read, and its faults for tests to set. Threads: safe.
///
/// Relative paths start at "/"; "." and ".." are resolved as text; there are no links. Only `put` creates parent
/// folders. A failed call changes nothing and throws Error kNotFound when reading (status, list, open, open_below,
/// read_at) and kResource when writing; a lock or an exchange that fails also throws.
struct MemoryState {
  MemoryState();
  ~MemoryState();
  /// Fails call number `call` (from 0) and, when `persistent`, all after it. Negative: none.
  void fail_at(std::int64_t call, bool persistent = false);
  void fail_also_at(std::int64_t call);    ///< A second call to fail.
  std::int64_t calls() const;              ///< Calls so far, reads included.
  std::vector<std::string> log() const;    ///< "create /x", "write /x 0 4", "sync /x", "rename /a /b", ...; also
                                           ///< "expect_sync /x", which cannot fail and is not counted as a call.
  std::vector<std::string> paths() const;  ///< All files and folders, sorted.
  /// \throws Error kNotFound
  std::vector<std::byte> content(const std::string& path) const;
  void put(const std::string& path, std::span<const std::byte> content);  ///< Creates parents.
  int open_files() const;                      ///< Handles (readers, writers, locks) not yet destroyed.
  void without_exchange(bool missing = true);  ///< exchange() returns false, as on systems without it.

  struct Impl;
  std::unique_ptr<Impl> impl;
};

/// Threads: safe. The state may outlive the file system, and vice versa.
std::unique_ptr<LocalDisk> make_memory_disk(std::shared_ptr<MemoryState> state);

}  // namespace shard
