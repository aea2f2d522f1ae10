/// \file
/// The `hint:` line of an error. It expresses the library's suggestions as command-line options.
#pragma once

#include <string>
#include <vector>

#include "apps/shardctl/request/request.h"
#include "libshard/core/error.h"

namespace shard::app {

/// Joins the error's own hint and its suggestions as alternatives: "add --objects drop to skip them, or ...". If
/// each alternative is one option to add or a different source, the result contains the commands to run. Empty if the
/// error has neither hint nor suggestion.
/// \param arguments  the command line as typed
std::string hint_text(const Error& error, const Request& request, const std::vector<std::string>& arguments);

}  // namespace shard::app
