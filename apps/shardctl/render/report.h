/// \file
/// How a failure is reported: three lines on stderr, with --json also one `shardctl.error/1` on stdout.
#pragma once

#include <exception>

#include "apps/shardctl/request/request.h"
#include "apps/shardctl/session/session.h"
#include "libshard/core/error.h"

namespace shard::app {

inline constexpr int kExitDiffers = 1;
inline constexpr int kExitInternal = 70;

/// The exit code of cli.md for an error.
int exit_code_for(ErrorCode code);

/// The same error, with the file's final path instead of its staged path.
Error of_destination(Error error, const std::string& destination);

/// Reports `failure` (any exception) and returns the exit code.
int report(Session& session, const Request& request, const std::exception_ptr& failure);

}  // namespace shard::app
