/// \file SourceStore: the minimal interface through which formats read checkpoint files.
///
/// Paths are those of the process, separated by '/'. Errors are Error with the path in `file`: kNotFound if a path is
/// absent or unreadable (also for EIO).
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "libshard/core/arena.h"
#include "libshard/core/error.h"
#include "libshard/core/file_identity.h"

namespace shard {

/// One of several ranges of a file to read.
struct RangedRead {
  std::int64_t offset_bytes;
  std::span<std::byte> out;
};

using ByteTaker = std::function<void(std::span<const std::byte>)>;

/// A file open for positioned reads. Threads: all members may be called by several at once.
class RandomReader {
 public:
  virtual ~RandomReader() = default;
  /// Fills `out` from `offset_bytes`. \throws Error kCorruption (kind truncated)  the file ends too early.
  virtual void read_at(std::int64_t offset_bytes, std::span<std::byte> out) const = 0;
  /// Fills every range. A store with a long round trip overrides it to request all of them at once.
  /// \throws Error as read_at, for the first range that fails
  virtual void read_many(std::span<const RangedRead> ranges) const {
    for (const RangedRead& range : ranges) read_at(range.offset_bytes, range.out);
  }
  /// Announces a read. A store with a long round trip starts to fetch the bytes, as far as it has room for them, and
  /// returns at once. Others do nothing.
  virtual void expect_read(std::int64_t /*offset_bytes*/, std::int64_t /*bytes*/) const {}
  /// The bytes in this process's memory, if they are already there (they then count as read); otherwise empty.
  /// Ownership: a view, as long as this.
  virtual std::span<const std::byte> in_memory(std::int64_t /*offset_bytes*/, std::size_t /*bytes*/) const {
    return {};
  }
  /// A lock to hold during several sequential reads, so that threads do not make a decoder jump back and forth. Null
  /// for readers with random access.
  virtual std::unique_lock<std::mutex> turn() const { return {}; }
  /// Memory kept for later reads (a decoder, decoded bytes).
  virtual std::int64_t held_bytes() const { return 0; }
  /// The number of values computed by reads since the last call that are infinite or NaN only in the dtype of the
  /// elements. Each is returned once, whichever thread asks.
  virtual std::int64_t take_overflows() const { return 0; }
  virtual std::int64_t size() const = 0;  ///< The size in bytes when the file was opened.
  virtual FileIdentity identity() const { return {}; }
  virtual std::int64_t modified_ns() const { return 0; }  ///< FileStatus::modified_ns when the file was opened.
  /// The number of these bytes that are allocated. Holes in sparse files do not count.
  virtual std::int64_t allocated_bytes(std::int64_t /*offset_bytes*/, std::int64_t count) const { return count; }
  const std::string& name() const { return name_; }  ///< For messages.
  /// The kernel's descriptor for reflinks, or -1.
  virtual int descriptor() const { return -1; }
  /// The number of requests that hide the time of one, if they are sent at one time: 1 for a disk that answers at once.
  virtual int requests_at_once() const { return 1; }
  /// The number of calls of `stream` at one time that take all that a server can send; 0: bytes are no faster that way.
  virtual int streams_at_once() const { return 0; }
  /// Calls `take` with the bytes of a range in order, as they arrive, and keeps none of them. An exception of `take`
  /// ends the call. Without an override, reads blocks of 1 MiB. \throws Error as read_at, also after a part of the
  /// bytes
  virtual void stream(std::int64_t offset_bytes, std::int64_t bytes, const ByteTaker& take) const;

 protected:
  std::string name_;
};

enum class FileKind { kAbsent, kFile, kFolder, kOther };

struct FileStatus {
  FileKind kind = FileKind::kAbsent;
  std::int64_t bytes = 0;
  std::uint64_t device = 0, inode = 0;  ///< See identity().
  std::uint32_t mode = 0;               ///< Permission bits, 0 to 0777.
  std::int64_t modified_ns = 0;         ///< Last modification time in ns since 1970; 0 if unknown.

  FileIdentity identity() const { return {device, inode}; }
};

/// True if both paths name the same existing file or folder.
inline bool is_same(const FileStatus& a, const FileStatus& b) {
  return a.kind != FileKind::kAbsent && b.kind != FileKind::kAbsent && a.identity() == b.identity();
}

/// The error of read_at if the file `name` ends at byte `have`, and bytes up to `need` were requested.
Error file_too_short(const std::string& name, std::int64_t have, std::int64_t need);
/// The error for a file that changed after it was opened.
Error file_changed(std::string_view name);

/// Stores source checkpoints: a local disk, its in-memory fake, or an object store. Threads: safe.
class SourceStore {
 public:
  virtual ~SourceStore() = default;
  virtual FileStatus status(const std::string& path) const = 0;  ///< Follows symlinks; kAbsent for broken ones.
  bool is_file(const std::string& path) const { return status(path).kind == FileKind::kFile; }
  bool is_folder(const std::string& path) const { return status(path).kind == FileKind::kFolder; }
  bool exists(const std::string& path) const { return status(path).kind != FileKind::kAbsent; }
  /// Names in a folder, sorted bytewise, without "." and "..".
  virtual std::vector<std::string> list(const std::string& folder) const = 0;
  virtual std::unique_ptr<RandomReader> open(const std::string& path) const = 0;
  /// Opens `relative` below `folder`. Refuses absolute paths, "..", and links to folders outside of `folder`
  /// (kCorruption). The file itself may be a link to a regular file anywhere, as in Hugging Face caches.
  virtual std::unique_ptr<RandomReader> open_below(const std::string& folder, const std::string& relative) const = 0;
};

/// Reads metadata. The arena's budget is raised by the allocated bytes of the file, and is charged for all bytes, so a
/// hole of a sparse file is refused before it is read. \throws Error kCorruption  see Budget::charge and read_at
std::vector<std::byte> read_metadata(const RandomReader& file, std::int64_t offset_bytes, std::int64_t count,
                                     Arena& arena);

/// \throws Error kCorruption  the file is larger than `limit_bytes`.
void check_file_size(const RandomReader& file, std::int64_t limit_bytes);

/// Reads the whole file. \throws Error kCorruption  it is larger than `limit_bytes`.
std::vector<std::byte> read_whole(const RandomReader& file, std::int64_t limit_bytes);

}  // namespace shard
