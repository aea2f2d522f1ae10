/// \file
/// Reports of failures: three lines on stderr, and with --json also one `shardctl.error/1` on stdout.
#pragma once

#include <exception>

#include "apps/shardctl/request/request.h"
#include "apps/shardctl/session/session.h"
#include "libshard/core/error.h"

namespace shard::app {

inline constexpr int kExitDiffers = 1;
inline constexpr int kExitInternal = 70;

/// The exit code for an error, as documented in the help.
int exit_code_for(ErrorCode code);

/// The same error, with the final path of its file instead of the staged path.
Error of_destination(Error error, const std::string& destination);

/// Reports `failure`, which may be any exception, and returns the exit code.
int report(Session& session, const Request& request, const std::exception_ptr& failure);

}  // namespace shard::app
