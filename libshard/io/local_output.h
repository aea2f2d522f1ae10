/// \file
/// An Output on a local disk. Files are written beside the destination and become visible in one step.
///
/// Everything goes through two folders that are held open, the one that DST is in and the sibling, so that whoever may
/// rename there cannot turn it elsewhere: a sibling that was moved or replaced fails the output (kResource). Every part
/// makes sure, by device and inode, that it opened the root's sibling.
///
/// begin: a temporary sibling `.NAME.shardctl-XXXXXXXX` (a folder, locked, mode 0700; of a NAME over 200 bytes its
/// front and hash) beside DST, and in it what will be DST; create: a new file there, its space allocated first; commit:
/// sync folders, rename to DST (or swap with it), sync the parent, remove the sibling with what DST was before. Any
/// other end leaves DST as it was.
/// A killed run leaves its sibling without a lock; the next run to the same DST removes such siblings.
///
/// Where the system cannot swap two names, an old DST is kept as `.NAME.shardctl-old-XXXXXXXX` until the new one is
/// there, which no later run removes by itself: a file by a second name, so that DST is never absent, a folder, or a
/// file that can have no second name, by moving it aside. A DST that is a symbolic link is replaced as a name; what it
/// points to stays. The companion of a single file (output.h) is renamed right after it; an old one goes before. A kill
/// in between leaves the file without a companion, never beside one of another file. What replaces a file or a folder
/// gets its permission bits, and so do files of the same names in a replaced folder.
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
/// \throws Error kExists  DST exists and not `force`; or it is, lies in, or holds one of `sources` or a file of them
/// (by
///   identity and through links: hard links count, and the folders that a source's links lead to).
/// \throws Error kResource  its parent is not a folder. \throws Error kInvalidArgument  DST names nothing new ("/",
/// ".."). Ownership: `disk` must outlive the store and all that it begins.
std::unique_ptr<OutputStore> local_output(LocalDisk& disk, const std::string& destination,
                                          const std::vector<std::string>& sources, const LocalOutputOptions& options);

}  // namespace shard
