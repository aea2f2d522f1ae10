/// \file The destination of a local output, and the check that writing it does not damage the source.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "libshard/io/local_disk.h"

namespace shard {

/// DST split into `parent`/`name`, without trailing slashes.
struct Destination {
  /// \throws Error kInvalidArgument  DST names nothing new ("/", "..")
  explicit Destination(const std::string& destination);
  /// A new name for an entry next to DST. `kind` distinguishes entries with different purposes.
  std::string sibling(std::string_view kind = "") const;
  /// True for names that sibling() returns.
  bool is_sibling(std::string_view entry) const;

  std::string parent, name, path;
};

/// The relation of `to` to the source, for a message: it is the source or one of its files, or is inside or contains
/// one. Null if there is none. Compares identities, so that links are recognized.
const char* find_overlap(const LocalDisk& disk, const Destination& to, const std::string& source);

/// \throws Error kExists  find_overlap finds a relation
void check_overlap(const LocalDisk& disk, const Destination& to, const std::string& source);

/// Does the same for a bind mount of a folder inside the folder DST, which is about to be replaced. Neither links nor
/// parents lead from such a source to DST. Refuses also other mount points inside DST, whose files would be removed
/// with it. `parent` is DST's. Cost: two statuses of each entry inside DST
void check_mounts(LocalDisk& disk, LocalFolder& parent, const Destination& to, const std::vector<std::string>& sources);

/// \throws Error kExists  DST is a mount point, as a volume of a container: not even to be replaced
void check_no_mount_point(const LocalFolder& parent, const Destination& to);

/// \throws Error kExists  DST is a device, a pipe or a socket, or a link to one: not even to be replaced
void check_replaceable(const LocalDisk& disk, const Destination& to);

/// Keeps other runs from committing to the same parent until the handle is destroyed. Waits for a second at most,
/// because other programs may lock the folder. Null if it is not locked.
std::unique_ptr<LocalFolder> lock_commits(LocalFolder& parent);

/// \throws Error kResource  a different rank has created the output's folder, but this rank does not see it
[[noreturn]] void fail_elsewhere(const Destination& to);

/// `there` is the status of DST's name. \throws Error kExists
void check_absent(const FileStatus& there, const Destination& to);

}  // namespace shard
