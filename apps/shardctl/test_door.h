/// \file
/// Where tests of failures reach into a run; tests/launched/README.md. Nothing happens without its variable.
#pragma once

#include <string_view>

#include "apps/shardctl/session.h"

namespace shard::app {

/// Called before each step of a job. With SHARDCTL_TEST_HOLD=STEP:RANK:FILE that rank writes its process id to FILE and
/// goes on when FILE is removed.
void pass_step(const Session& session, int rank, std::string_view step);

}  // namespace shard::app
