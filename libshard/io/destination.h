/// \file
/// Where a local output goes, and whether that harms what is read. Inside libshard/io only.
#pragma once

#include <string>
#include <string_view>

#include "libshard/io/local_disk.h"

namespace shard {

/// DST taken apart: `parent`/`name`, without slashes at the end.
struct Destination {
  /// \throws Error kInvalidArgument  it names nothing new ("/", "..")
  explicit Destination(const std::string& destination);
  /// A new name for an entry beside DST; `kind` tells entries of several purposes apart.
  std::string sibling(std::string_view kind = "") const;
  /// True for what sibling() makes.
  bool is_sibling(std::string_view entry) const;

  std::string parent, name, path;
};

/// By identity, so that links count too. \throws Error kExists  `to` is, lies in or holds the source or a file of it
void check_overlap(const LocalDisk& disk, const Destination& to, const std::string& source);

/// \throws Error kExists  DST is a device, a pipe or a socket, or a link to one: not even to be replaced
void check_replaceable(const LocalDisk& disk, const Destination& to);

/// `there` is what has DST's name. \throws Error kExists
void check_absent(const FileStatus& there, const Destination& to);

}  // namespace shard
