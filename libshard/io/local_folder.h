/// \file
/// LocalFolder: an open folder of a local disk. Whatever its path comes to mean later, calls reach the folder that was
/// opened. `name` is an entry of it, without slashes; no call follows a link.
///
/// Errors are Error with the path in `file`: kResource where something cannot be looked at or written (ENOSPC, EACCES,
/// EIO, a name that is too long), kExists where a name that must be new exists.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "libshard/io/file_writer.h"
#include "libshard/io/source_store.h"

namespace shard {

/// Threads: one. Ownership: the handle; nothing on the disk goes with it but its lock.
class LocalFolder {
 public:
  virtual ~LocalFolder() = default;
  const std::string& path() const { return path_; }  ///< The one that it was opened by, for messages.

  virtual FileStatus status() const = 0;                            ///< Of the folder itself.
  virtual bool is_private() const = 0;                              ///< Only this process's user may enter it.
  virtual FileStatus status_of(const std::string& name) const = 0;  ///< A link is kOther; nothing is kAbsent.
  virtual std::vector<std::string> list() const = 0;                ///< Sorted bytewise, without "." and "..".
  virtual std::int64_t free_bytes() const = 0;                      ///< INT64_MAX where nobody knows.

  virtual std::unique_ptr<FileWriter> create(const std::string& name) = 0;  ///< Must be new.
  /// Opens an existing file for writing: another rank created it.
  virtual std::unique_ptr<FileWriter> open_existing(const std::string& name) = 0;
  /// Makes a folder of mode 0700 and opens it. Null when it was removed in between.
  /// \throws Error kResource  another one took its name in between
  virtual std::unique_ptr<LocalFolder> make_folder(const std::string& name) = 0;
  virtual std::unique_ptr<LocalFolder> open_folder(const std::string& name) = 0;

  /// Sets the folder's permission bits; without `mode` those that an ordinary mkdir would give it (0777 less umask).
  virtual void set_mode(std::optional<std::uint32_t> mode) = 0;
  /// Sets those of a file in it, and forces them to disk if `sync`.
  virtual void set_mode_of(const std::string& name, std::uint32_t mode, bool sync) = 0;
  virtual void sync() = 0;  ///< Forces the folder's entries to disk.

  /// Moves an entry to `other`, where `new_name` must be absent. \pre `other` is of the same disk. \throws Error
  /// kExists
  virtual void rename_new(const std::string& name, LocalFolder& other, const std::string& new_name) = 0;
  /// Swaps two existing entries in one step. \returns false where the system cannot.
  virtual bool exchange(const std::string& name, LocalFolder& other, const std::string& other_name) = 0;
  /// Gives a file a second name, which must be new. \returns false where the system cannot, and for folders.
  virtual bool link(const std::string& name, const std::string& new_name) = 0;
  /// Puts a file into the place of another one in one step.
  virtual void rename_over(const std::string& name, LocalFolder& other, const std::string& other_name) = 0;
  virtual void remove_all(const std::string& name) = 0;  ///< A file, a link, or a folder; absent is fine.
  /// Removes an open folder of this one with all that is in it; its entry stays where another thing has the name by
  /// now.
  virtual void remove_folder(const std::string& name, LocalFolder& folder) = 0;

  /// Locks the folder until the handle goes. \returns false when somebody holds it, it was removed, or the file system
  /// has no locks: "leave it alone".
  virtual bool try_lock() = 0;

 protected:
  explicit LocalFolder(std::string path) : path_(std::move(path)) {}

 private:
  const std::string path_;
};

}  // namespace shard
