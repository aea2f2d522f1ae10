/// \file
/// Conversions of dtypes that the user asks for, and the files beside the source that tell which are refused.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "apps/shardctl/session/session.h"
#include "apps/shardctl/source/source.h"
#include "libshard/catalog/quantized.h"

namespace shard::app {

/// Facts about quantization from the JSON files in the folder of a source.
QuantizationFacts facts_beside(const Session& session, const OpenSource& source);

/// `check_casts` with the facts beside the source, which are read only if something is converted. `converts_all`: for
/// export --dtype, which treats float8 tensors without scales as weights. \returns warnings
/// \throws Error kUnsupported  the hint is the line to run that leaves quantized modules as they are
std::vector<std::string> checked_casts(const Session& session, const SelectionOptions& select, const OpenSource& source,
                                       std::span<const SelectedTensor> tensors, bool converts_all = false);

/// Makes the source one of plain weights, with the facts beside it. \throws Error  see shard::dequantized
void dequantize(const Session& session, DType dtype, OpenSource& source, Log& log);

}  // namespace shard::app
