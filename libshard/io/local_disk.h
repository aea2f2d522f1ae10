/// \file
/// LocalDisk: the file system operations that a staged local output needs beyond reading. Implementations: POSIX;
/// in tests, one in memory that fails the n-th call.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "libshard/io/file_writer.h"
#include "libshard/io/local_folder.h"
#include "libshard/io/source_store.h"

namespace shard {

/// Threads: safe.
class LocalDisk : public SourceStore {
 public:
  /// Opens a folder for writing. Follows symlinks. Null if there is no folder.
  virtual std::unique_ptr<LocalFolder> open_folder(const std::string& path) = 0;
  /// The path with links resolved. Unchanged if it cannot be resolved.
  virtual std::string resolved(const std::string& path) const = 0;
  /// Copies `bytes` by reference if the file system supports it (FICLONERANGE). \returns false if it does not.
  virtual bool clone_range(const RandomReader& from, std::int64_t from_bytes, FileWriter& to, std::int64_t to_bytes,
                           std::int64_t bytes) = 0;

  /// Calls the LocalFolder functions on the folder that contains `path`. \throws Error kResource  the folder does not
  /// exist
  std::unique_ptr<FileWriter> create(const std::string& path);
  void make_folder(const std::string& path);
  void rename_new(const std::string& from, const std::string& to);
  void remove_all(const std::string& path);
};

/// The process's real file system.
LocalDisk& posix_disk();

}  // namespace shard
