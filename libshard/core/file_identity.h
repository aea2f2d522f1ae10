/// \file
/// FileIdentity: which file a name leads to. Two names of one file (hard links, symlinks) have one.
#pragma once

#include <compare>
#include <cstdint>

namespace shard {

/// Default: not known, as of files that lie in memory; such files are all different.
struct FileIdentity {
  std::uint64_t device = 0, inode = 0;

  bool is_known() const { return device != 0 || inode != 0; }
  friend auto operator<=>(const FileIdentity&, const FileIdentity&) = default;
};

}  // namespace shard
