/// \file
/// Conversions of dtypes that the user asks for, and the files beside the source that tell which are refused.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "apps/shardctl/request/request.h"
#include "apps/shardctl/session/session.h"
#include "apps/shardctl/source/source.h"
#include "libshard/catalog/quantized.h"

namespace shard::app {

/// Facts about quantization from the JSON files in the folder of a source.
QuantizationFacts facts_beside(const Session& session, const OpenSource& source);

/// `check_casts` with the facts beside the source, which are read only if something is converted. export --dtype takes
/// float8 tensors without scales for weights. \returns warnings
/// \throws Error kUnsupported  the hint is the line to run that leaves quantized modules as they are
std::vector<std::string> checked_casts(const Session& session, const Request& options, const OpenSource& source,
                                       std::span<const SelectedTensor> tensors);

}  // namespace shard::app
