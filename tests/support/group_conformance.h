/// \file
/// Duties of every Group, as checks that all ranks run: threads from a test, processes from `group_program`.
#pragma once

#include <span>
#include <string>

#include "libshard/ranks/group.h"

namespace shard::testing {

struct GroupCheck {
  const char* name;
  /// Run by all ranks. \throws std::exception  the group does not do it.
  void (*run)(Group& group);
  bool is_heavy = false;  ///< Gigabytes.
  bool breaks = false;    ///< The group is of no use afterwards.
};
std::span<const GroupCheck> group_checks();

}  // namespace shard::testing
