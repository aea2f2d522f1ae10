/// \file FileIdentity: identifies the file to which a name leads. Two names of one file (hard links, symlinks) have one
///   identity.
#pragma once

#include <compare>
#include <cstdint>

namespace shard {

/// Default: unknown, as for files in memory. Such files are all different.
struct FileIdentity {
  std::uint64_t device = 0, inode = 0;

  bool is_known() const { return device != 0 || inode != 0; }
  friend auto operator<=>(const FileIdentity&, const FileIdentity&) = default;
};

}  // namespace shard
