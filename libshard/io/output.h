/// \file
/// Output: all or nothing. Files are written beside the destination and become visible in one step.
///
/// begin: a temporary sibling `.NAME.shardctl-XXXXXXXX` (a folder, locked, mode 0700) beside DST, and in it what will
/// be DST; file: a new file there, its space allocated first; commit: sync files, sync folders, rename to DST (or swap
/// with it), sync the parent, remove the sibling with what DST was before. Any other end leaves DST as it was.
/// A killed run leaves its sibling without a lock; the next run to the same DST removes such.
///
/// Where the system cannot swap two names, an old DST is moved aside to `.NAME.shardctl-old-XXXXXXXX`, which no later
/// run removes by itself. A DST that is a symbolic link is replaced as a name; what it points to stays.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "libshard/io/local_disk.h"

namespace shard {

struct OutputOptions {
  bool folder = true;  ///< DST is a folder of files, or one file.
  bool force = false;  ///< Replace an existing DST as a whole.
  bool sync = true;    ///< False: --no-fsync.
};

/// Threads: `file` and the writers' write_at may be called by several; the rest by one.
class Output {
 public:
  virtual ~Output() = default;  ///< Aborts unless committed: removes the temporary sibling.
  /// A new file of exactly `bytes`; folders in its path are made. For a single-file DST the path is ignored.
  /// \throws Error kInvalidArgument  the path is absolute or holds ".."; kResource
  /// Ownership: the Output owns the writer.
  virtual FileWriter& file(const std::string& path, std::int64_t bytes) = 0;
  /// Makes everything durable (unless --no-fsync) and visible. \throws Error kResource, kExists
  virtual void commit() = 0;
  virtual void abort() noexcept = 0;
  /// Where DST lies until the commit: what other ranks make an OutputPart of.
  virtual const std::string& staged() const = 0;
};

/// Another rank's way into the files of an Output that rank 0 began and will commit.
/// Threads: `file` by one; the writers' write_at by several.
class OutputPart {
 public:
  /// `staged` is Output::staged() of rank 0. `options` are those of rank 0.
  OutputPart(LocalDisk& fs, std::string staged, const OutputOptions& options);
  ~OutputPart();  ///< Closes; removes nothing.
  /// A file that rank 0 made already. \throws Error kResource
  /// Ownership: as Output::file.
  FileWriter& file(const std::string& path);
  /// Makes durable (unless --no-fsync) what was written here, and closes. \throws Error kResource
  void finish();

 private:
  LocalDisk& fs_;
  std::string staged_;
  OutputOptions options_;
  std::vector<std::unique_ptr<FileWriter>> writers_;
};

/// Checks only: \throws Error kExists when DST is there and not `force`, or when it is, lies in, or holds one of
/// `sources` (by identity, so hard links of a source or of a source folder's files count too); kResource when the
/// parent is not a folder; kInvalidArgument when DST names no new thing ("/", "..").
void check_destination(const LocalDisk& fs, const std::string& destination, const std::vector<std::string>& sources,
                       const OutputOptions& options);

/// Removes unlocked temporary siblings of earlier runs, then begins. \throws Error kResource, kExists
std::unique_ptr<Output> begin_output(LocalDisk& fs, const std::string& destination, const OutputOptions& options);

}  // namespace shard
