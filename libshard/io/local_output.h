/// \file An Output on a local disk. Files are written next to the destination and become visible in one step.
///
/// All operations use two open folders, the one that contains DST and the sibling, so that a process with permission to
/// rename there cannot redirect them. A sibling that was moved or replaced fails the output (kResource). Every part
/// verifies by device and inode that it opened the root's sibling.
///
/// begin: creates a temporary sibling `.NAME.shardctl-XXXXXXXX` (a folder, locked, mode 0700; for a NAME over 200
/// bytes, its front and hash) next to DST, and in it the future DST. create: creates a new file there and allocates its
/// space first. commit: syncs folders, renames to DST (or swaps with it), syncs the parent, removes the sibling with
/// the old DST. Any other end leaves DST unchanged. A killed run leaves its sibling without a lock. The next run to the
/// same DST removes such siblings, or continues the first one with notes (find_left) and keeps the files in it.
///
/// If the system cannot swap two names, an old DST is kept as `.NAME.shardctl-old-XXXXXXXX` until the new one is in
/// position. No later run removes it. A file is kept by a second name, so that DST is never absent. A folder, or a file
/// that can have no second name, is moved aside. A DST that is a symbolic link is replaced as a name. Its target stays.
/// The companion of a single file (output.h) is renamed right after it. An old one is removed before. A kill in between
/// leaves the file without a companion, never with one of a different file. A new file or folder gets the permission
/// bits of the one that it replaces, and so do the folders and files of the same paths in a replaced folder. If a
/// failed commit cannot be rolled back, the old DST remains under a name that the error gives.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "libshard/io/local_disk.h"
#include "libshard/io/output.h"

namespace shard {

struct LocalOutputOptions {
  bool force = false;  ///< Replace an existing DST as a whole.
  bool sync = true;    ///< False: nothing is forced to disk.
};

/// Checks the destination and changes nothing yet.
/// \throws Error kExists  DST exists and not `force`; or it is one of `sources` or of their files, or is inside or
///   contains one (by identity and through links, including hard links and the folders to which a source's links lead).
/// \throws Error kResource  its parent is not a folder. \throws Error kInvalidArgument  DST names nothing new ("/",
///   "..").
/// Ownership: `disk` must outlive the store and everything that it creates.
std::unique_ptr<OutputStore> local_output(LocalDisk& disk, const std::string& destination,
                                          const std::vector<std::string>& sources, const LocalOutputOptions& options);

}  // namespace shard
