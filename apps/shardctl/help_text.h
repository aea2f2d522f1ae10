/// \file
/// Help texts with their options.
#pragma once

#include <string>

namespace shard::app {

/// The text of `shardctl help VERB`; of --help where `verb` is empty.
std::string help_text(const std::string& verb);

}  // namespace shard::app
