/// \file
/// A process that forks the ranks of tests. It has loaded libtorch already, which takes a process that is started by
/// exec 0.6 s of processor time.
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>
#include <vector>

namespace shard::test {

/// Forks the starter, which ends with this process. Call it first in main, before threads exist. It returns in this
/// process; and in each rank that the starter forks, with the rank's arguments and environment. Does nothing under
/// sanitizers, whose threads do not survive a fork, and in ranks. This process then becomes the parent of orphaned
/// descendants.
void start_rank_starter(int& argc, char**& argv);

/// A rank as a child of this process, with this process's folder and standard streams, and with `socket` under a number
/// that it finds in the variable `socket_variable`. Returns nothing without a starter, and if the
/// environment has changed since it was forked, because libraries read theirs when they are loaded. Threads: one at a
/// time. \throws std::system_error
std::optional<pid_t> fork_rank(const std::vector<std::string>& arguments, const std::vector<std::string>& variables,
                               const char* socket_variable, int socket);

}  // namespace shard::test
