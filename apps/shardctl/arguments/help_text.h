/// \file
/// Help texts with their options.
#pragma once

#include <string>

#include "apps/shardctl/arguments/verb.h"

namespace shard::app {

/// The text of `shardctl help VERB`; of --help where `verb` is null.
std::string help_text(const Verb* verb);

}  // namespace shard::app
