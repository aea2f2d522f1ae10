/// \file
/// Hooks for tests of failures, see tests/launched/README.md. Only in builds with the option SHARD_TEST_HOOKS, which
/// released programs do not have.
#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "libshard/io/local_disk.h"

namespace shard::app {

/// An observer of steps for a session. `hold` is SHARDCTL_TEST_HOLD, STEP:RANK:FILE: before that step that rank writes
/// its process id to FILE and goes on when FILE is removed.
std::function<void(int rank, std::string_view step)> hold_step(LocalDisk& fs, std::string hold);

}  // namespace shard::app
