/// \file
/// A file system that outputs are staged on: what a local output needs beyond reading. Two implementations: POSIX, and one
/// in memory that fails the n-th call (memory_disk.h).
///
/// Errors are Error with the path in `file`: kResource where something cannot be written (ENOSPC, EACCES, EIO), kExists
/// where a path that must be new exists.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "libshard/io/file_writer.h"
#include "libshard/io/source_store.h"

namespace shard {

/// Threads: safe.
class LocalDisk : public SourceStore {
 public:
  virtual std::unique_ptr<FileWriter> create(const std::string& path) = 0;  ///< Must be new.
  /// Opens an existing file for writing: another rank created it.
  virtual std::unique_ptr<FileWriter> open_existing(const std::string& path) = 0;
  virtual void make_folder(const std::string& path) = 0;  ///< Must be new; mode 0700 until the commit.
  virtual void sync_folder(const std::string& path) = 0;
  /// Gives a temporary folder the mode that an ordinary mkdir would give it (0777 less umask).
  virtual void set_default_mode(const std::string& path) = 0;
  /// `to` must be absent. \throws Error kExists
  virtual void rename_new(const std::string& from, const std::string& to) = 0;
  /// Swaps two existing paths in one step. \returns false where the system cannot.
  virtual bool exchange(const std::string& a, const std::string& b) = 0;
  virtual void remove_all(const std::string& path) = 0;  ///< File or folder; absent is fine. Does not follow links.
  /// Locks a folder until the returned handle goes; null when somebody holds it, it is gone, or the file system has no
  /// locks: null means "leave it alone".
  virtual std::shared_ptr<void> try_lock(const std::string& folder) = 0;
  virtual std::int64_t free_bytes(const std::string& folder) const = 0;
  /// Copies `bytes` by reference where the file system clones (FICLONERANGE). \returns false where it cannot.
  virtual bool clone_range(const RandomReader& from, std::int64_t from_bytes, FileWriter& to, std::int64_t to_bytes,
                           std::int64_t bytes) = 0;
};

/// The process's real file system.
LocalDisk& posix_disk();

}  // namespace shard
