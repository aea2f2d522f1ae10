/// \file
/// The `hint:` of an error: what the library suggests, in the options of the command line.
#pragma once

#include <string>
#include <string_view>

#include "apps/shardctl/request/request.h"
#include "libshard/core/error.h"

namespace shard::app {

/// The error's own hint and its suggestions as alternatives: "add --objects drop to leave them out, or ...". Where
/// every alternative is one option to add or another source, the lines to run. Empty where the error has neither.
std::string hint_text(const Error& error, const Request& options);

}  // namespace shard::app
