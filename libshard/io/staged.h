/// \file
/// What the token of a local output says. Inside libshard/io only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "libshard/io/source_store.h"

namespace shard {

/// The name of this machine, never empty.
std::string this_host();

/// Which folder the sibling is, and whether what is staged in it is a folder.
struct Staged {
  std::string sibling;  ///< Its name beside DST.
  FileStatus status;
  bool is_folder = true;

  std::vector<std::byte> token() const;
  /// One folder has other device numbers on other hosts. \throws Error kPeer  it is not a token
  static Staged of_token(std::span<const std::byte> token, std::uint64_t device_of_parent);
};

}  // namespace shard
