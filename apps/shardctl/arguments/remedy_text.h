/// \file
/// The `hint:` of an error: what the library suggests, in the options of the command line.
#pragma once

#include <string>
#include <vector>

#include "apps/shardctl/request/request.h"
#include "libshard/core/error.h"

namespace shard::app {

/// The error's own hint and its suggestions as alternatives: "add --objects drop to leave them out, or ...". Where
/// every alternative is one option to add or another source, the lines to run. Empty where the error has neither.
/// `arguments`: the command line as typed.
std::string hint_text(const Error& error, const Request& request, const std::vector<std::string>& arguments);

}  // namespace shard::app
