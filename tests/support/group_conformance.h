/// \file
/// The requirements for every Group, as checks that all ranks run: threads in a test, processes in `group_program`.
#pragma once

#include <span>
#include <string>

#include "libshard/ranks/group.h"

namespace shard::testing {

struct GroupCheck {
  const char* name;
  /// All ranks run it. \throws std::exception  the group fails the check.
  void (*run)(Group& group);
  bool is_heavy = false;  ///< Uses gigabytes.
  bool breaks = false;    ///< The group is unusable afterwards.
};
std::span<const GroupCheck> group_checks();

}  // namespace shard::testing
