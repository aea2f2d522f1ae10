/// \file
/// Conversions of dtypes that the user requests, and the files beside the source that determine which are refused.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "apps/shardctl/session/session.h"
#include "apps/shardctl/source/source.h"
#include "libshard/catalog/quantized.h"
#include "libshard/core/findings.h"

namespace shard::app {

/// Facts about quantization from the JSON files in the folder of a source.
QuantizationFacts facts_beside(const Session& session, const OpenSource& source);

/// Calls `check_casts` with the facts beside the source, which are read only if something is converted. With
/// `converts_all`, as for export --dtype, float8 tensors without scales count as weights.
/// \returns warnings
/// \throws Error kUnsupported  the hint is a command that does not convert quantized modules
std::vector<std::string> checked_casts(const Session& session, const SelectionOptions& select, const OpenSource& source,
                                       std::span<const SelectedTensor> tensors, bool converts_all = false);

/// Makes the source one of plain weights, with the facts beside it. \param findings  see shard::find_formulas
/// \throws Error  see shard::dequantized; kUnsupported  with --local-input, a weight whose parts are on different ranks
void dequantize(const Session& session, DType dtype, OpenSource& source, Findings& findings, Log& log);

}  // namespace shard::app
