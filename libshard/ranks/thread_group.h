/// \file
/// Ranks as threads of one process: pieces are copied from memory to memory, once.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "libshard/ranks/group.h"

namespace shard {

/// Creates one Group per thread, for `size` ranks in this process. A group that is destroyed while others wait for it
/// breaks the group for them. Ownership: the groups share their state. Any may outlive the others.
std::vector<std::unique_ptr<Group>> make_thread_groups(int size);

/// Runs `body` on `size` threads at once, each with its rank's group, and waits for all of them.
/// \throws  the exception of the lowest rank; an Error other than kPeer takes precedence.
void run_as_threads(int size, const std::function<void(Group&)>& body);

}  // namespace shard
