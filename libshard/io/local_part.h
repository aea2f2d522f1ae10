/// \file
/// The parts of a local output, and the token by which they find it. Inside libshard/io only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "libshard/io/local_folder.h"
#include "libshard/io/output.h"

namespace shard {

/// Never empty.
std::string this_host();

/// What a token says: which folder the sibling is, and what is staged in it.
struct Staged {
  std::string sibling;  ///< Its name beside DST.
  FileStatus status;
  bool is_folder = true;     ///< What will be DST.
  bool is_taken_up = false;  ///< An earlier run began it: files may be there already.

  std::vector<std::byte> token() const;
  /// One folder has other device numbers on other hosts. \throws Error kPeer  a token without a place
  static Staged of_token(std::span<const std::byte> token, std::uint64_t device_of_parent);
};

[[noreturn]] void fail_swapped(const LocalFolder& parent, const std::string& sibling);

/// \param sibling  the root's, opened; `name` is DST's.
std::unique_ptr<OutputPart> make_local_part(std::unique_ptr<LocalFolder> sibling, const std::string& name,
                                            const Staged& staged, bool sync);

}  // namespace shard
