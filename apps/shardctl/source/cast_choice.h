/// \file
/// Conversions of dtypes that the user requests, and the files beside the source that determine which are refused.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "apps/shardctl/session/session.h"
#include "apps/shardctl/source/source.h"

namespace shard::app {

/// Calls `check_casts` with the facts beside the source, which are read only if something is converted. With
/// `converts_all`, as for export --dtype, float8 tensors without scales count as weights.
/// \returns warnings
/// \throws Error kUnsupported  the hint is a command that does not convert quantized modules
std::vector<std::string> checked_casts(const Session& session, const SelectionOptions& select, const OpenSource& source,
                                       std::span<const SelectedTensor> tensors, bool converts_all = false);

}  // namespace shard::app
