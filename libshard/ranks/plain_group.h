/// \file
/// A Group as plain C functions, so that plug-ins and programs built with different C++ libraries can share one
/// (plugin_call.h).
#pragma once

#include <cstdint>
#include <memory>

#include "libshard/ranks/group.h"
#include "libshard/ranks/plugin_call.h"

namespace shard {

/// The operations of group.h by their names, with its preconditions, errors and threads. `group` is PlainGroup::group.
/// Those that can fail return false then.
struct GroupFunctions {
  bool (*barrier)(void* group, const ErrorSink* errors);
  bool (*broadcast)(void* group, PlainRoom data, int root, const ErrorSink* errors);
  bool (*all_gather)(void* group, PlainBytes own, PlainRoom all, const ErrorSink* errors);
  /// `to` and `from` have as many pieces as there are ranks.
  bool (*exchange)(void* group, const PlainBytes* to, const PlainRoom* from, const ErrorSink* errors);
  bool (*waits_for)(void* group, int* rank, std::int64_t* milliseconds);  ///< False: for none.
  void (*set_timeout)(void* group, std::int64_t milliseconds);
  void (*abort)(void* group);
  void (*destroy)(void* group);
};

struct PlainGroup {
  void* group;
  const GroupFunctions* functions;  ///< Live as long as the library that made it.
  int rank, size;
  const char* backend;  ///< Lives as long as the group.
};

/// Ownership: whoever has it calls `destroy`, or gives it to from_plain.
PlainGroup to_plain(std::unique_ptr<Group> group);
/// The same, for a group that the caller keeps and that outlives the result.
PlainGroup to_plain(Group& group);
/// The group whose functions they are; it owns them.
std::unique_ptr<Group> from_plain(const PlainGroup& plain);

}  // namespace shard
