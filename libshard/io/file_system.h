/// \file
/// The narrow door to the outside world. Two implementations: POSIX, and one in memory that fails the n-th call.
///
/// Paths are as the process sees them, '/' separated. Errors are Error with the path in `file`: kNotFound where a path
/// that is read is absent or unreadable (EIO too), kResource where something written cannot be (ENOSPC, EACCES, EIO),
/// kExists where a path that must be new is there.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace shard {

/// A file open for positioned reads. Threads: all members may be called by several at once.
class RandomReader {
 public:
  virtual ~RandomReader() = default;
  /// Fills `out` from `offset_bytes`. \throws Error kCorruption (kind truncated) when the file ends before.
  virtual void read_at(std::int64_t offset_bytes, std::span<std::byte> out) const = 0;
  virtual std::int64_t size() const = 0;             ///< Bytes, as of the open.
  const std::string& name() const { return name_; }  ///< For messages.
  /// The kernel's descriptor for reflinks, or -1.
  virtual int descriptor() const { return -1; }

 protected:
  std::string name_;
};

/// A new file open for positioned writes. Threads: write_at may be called by several at once on disjoint ranges.
class FileWriter {
 public:
  virtual ~FileWriter() = default;  ///< Releases; does not sync.
  virtual void write_at(std::int64_t offset_bytes, std::span<const std::byte> data) = 0;
  /// Reserves space so that later writes cannot run out of it; falls back to setting the size where not supported.
  virtual void allocate(std::int64_t bytes) = 0;
  /// Forces data and metadata to disk. A failed sync must never be retried on the same file.
  virtual void sync() = 0;
  virtual void close() = 0;  ///< Explicit, may throw.
  virtual int descriptor() const { return -1; }
};

enum class FileKind { kAbsent, kFile, kFolder, kOther };

struct FileStatus {
  FileKind kind = FileKind::kAbsent;
  std::int64_t bytes = 0;
  std::uint64_t device = 0, inode = 0;  ///< Identity: equal for two names of one file.
};

class FileSystem {
 public:
  virtual ~FileSystem() = default;
  virtual FileStatus status(const std::string& path) const = 0;  ///< Follows links; kAbsent rather than an error.
  /// Names in a folder, sorted bytewise, without "." and "..".
  virtual std::vector<std::string> list(const std::string& folder) const = 0;
  virtual std::unique_ptr<RandomReader> open(const std::string& path) const = 0;
  /// Opens `relative` below `folder`: refuses absolute paths, "..", and folders on the way that are links which lead
  /// out (kCorruption). The file itself may be a link to a regular file anywhere: Hugging Face caches are made of such.
  virtual std::unique_ptr<RandomReader> open_below(const std::string& folder, const std::string& relative) const = 0;

  virtual std::unique_ptr<FileWriter> create(const std::string& path) = 0;  ///< Must be new.
  /// A file that is there, for writing: another rank made it.
  virtual std::unique_ptr<FileWriter> open_made(const std::string& path) = 0;
  virtual void make_folder(const std::string& path) = 0;                    ///< Must be new; mode 0700 until commit.
  virtual void sync_folder(const std::string& path) = 0;
  /// Gives a temporary folder the mode that an ordinary mkdir would give it (0777 less umask).
  virtual void open_up_folder(const std::string& path) = 0;
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

/// The process's real file system. Threads: safe.
FileSystem& posix_file_system();

/// The whole file, no larger than `limit_bytes`. \throws Error kCorruption  it is larger.
std::vector<std::byte> read_whole(const RandomReader& file, std::int64_t limit_bytes);

/// Path arithmetic without the disk.
std::string join_path(std::string_view folder, std::string_view name);
std::string base_name(std::string_view path);    ///< "b" of "/a/b" and of "/a/b/".
std::string parent_path(std::string_view path);  ///< "/a" of "/a/b"; "." where there is none.

}  // namespace shard
