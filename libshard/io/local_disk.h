/// \file
/// LocalDisk: the file system operations that a staged local output needs beyond reading. Implementations: POSIX;
/// in tests, one in memory that fails the n-th call.
///
/// Errors are Error with the path in `file`: kResource if something cannot be accessed or written (ENOSPC, EACCES, EIO,
/// a name that is too long), kExists if a name that must be new exists.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "libshard/io/file_writer.h"
#include "libshard/io/source_store.h"

namespace shard {

/// An open folder of a local disk. Calls reach the folder that was opened, even if its path later leads to a different
/// one. `name` is an entry in it, without slashes. No call follows a link. Threads: one. Ownership: the handle.
/// Destroying it changes nothing on the disk except its lock.
class LocalFolder {
 public:
  virtual ~LocalFolder() = default;
  const std::string& path() const { return path_; }  ///< The path by which it was opened, for messages.

  virtual FileStatus status() const = 0;                            ///< The status of the folder itself.
  virtual bool is_private() const = 0;                              ///< Whether only this process's user may enter it.
  virtual FileStatus status_of(const std::string& name) const = 0;  ///< A link is kOther. A missing entry is kAbsent.
  /// Whether something is mounted on an entry, which can then be neither renamed nor removed. False if unknown.
  virtual bool is_mount_point(const std::string& /*name*/) const { return false; }
  virtual std::vector<std::string> list() const = 0;  ///< Sorted bytewise, without "." and "..".
  virtual std::int64_t free_bytes() const = 0;        ///< INT64_MAX if unknown.

  virtual std::unique_ptr<FileWriter> create(const std::string& name) = 0;  ///< Creates a file. Its name must be new.
  /// Opens an existing file, which a different rank created, for writing.
  virtual std::unique_ptr<FileWriter> open_existing(const std::string& name) = 0;
  /// Creates a folder of mode 0700 and opens it. Null if it was removed in between.
  /// \throws Error kResource  a different folder took its name in between
  virtual std::unique_ptr<LocalFolder> make_folder(const std::string& name) = 0;
  virtual std::unique_ptr<LocalFolder> open_folder(const std::string& name) = 0;

  /// Sets the folder's permission bits. Without `mode`, sets those of an ordinary mkdir (0777 minus umask).
  virtual void set_mode(std::optional<std::uint32_t> mode) = 0;
  /// Sets those of a file in it, and syncs them to disk if `sync`.
  virtual void set_mode_of(const std::string& name, std::uint32_t mode, bool sync) = 0;
  virtual void sync() = 0;  ///< Syncs the folder's entries to disk.

  /// Moves an entry to `other`, where `new_name` must be absent. \pre `other` is of the same disk. \throws Error
  /// kExists
  virtual void rename_new(const std::string& name, LocalFolder& other, const std::string& new_name) = 0;
  /// Swaps two existing entries in one step. \returns false if the system does not support it.
  virtual bool exchange(const std::string& name, LocalFolder& other, const std::string& other_name) = 0;
  /// Gives a file a second name, which must be new. \returns false if the system does not support it, and for folders.
  virtual bool link(const std::string& name, const std::string& new_name) = 0;
  /// Replaces a file by a different one in one step.
  virtual void rename_over(const std::string& name, LocalFolder& other, const std::string& other_name) = 0;
  virtual void remove_all(const std::string& name) = 0;  ///< Removes a file, link or folder, if there is one.
  /// Removes an open folder of this one with its content. Its entry is kept if a different folder or file has the name
  /// by now.
  virtual void remove_folder(const std::string& name, LocalFolder& folder) = 0;

  /// Locks the folder until the handle is destroyed. \returns false if a different process has the lock, it was
  /// removed, or the file system has no locks. The caller must then not change the folder.
  virtual bool try_lock() = 0;
  virtual int requests_at_once() const { return 1; }  ///< RandomReader::requests_at_once for its files.

 protected:
  explicit LocalFolder(std::string path) : path_(std::move(path)) {}

 private:
  const std::string path_;
};

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
  /// RandomReader::requests_at_once for the files at `path`; 1 if there is nothing.
  virtual int requests_at_once(const std::string& /*path*/) const { return 1; }

  /// Calls LocalFolder functions on the parent of `path`. \throws Error kResource  the folder does not exist
  std::unique_ptr<FileWriter> create(const std::string& path);
  void make_folder(const std::string& path);
  void rename_new(const std::string& from, const std::string& to);
  void remove_all(const std::string& path);
};

/// The process's real file system.
LocalDisk& posix_disk();
/// The files of the same file system, whose relative paths stay those of the folder in which the process is now. If
/// that cannot be opened, they are those of the process's folder at each call.
std::unique_ptr<SourceStore> posix_disk_from_here();

}  // namespace shard
