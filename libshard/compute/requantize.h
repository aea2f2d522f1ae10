/// \file
/// Merging adapters into a quantized model that stays quantized.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "libshard/catalog/quantized.h"
#include "libshard/compute/merge_adapters.h"

namespace shard {

/// The quantized base model with merged weights. Changed quantized weights are packed again in the base's scheme. All
/// other tensors are those of the base, byte for byte. A block keeps its scale if the merged values fit its codes, so a
/// change of 0 gives the same bytes. Otherwise its scale is the largest magnitude divided by half of the range of
/// codes. \param counts  as for merge_adapters. \param packed  receives the number of weights that are packed again
/// \throws Error kInvalidArgument  no weight is quantized; as merge_adapters
/// \throws Error kUnsupported  a changed weight is neither float8_e4m3fn with scales for rows or blocks, nor packed
///   symmetric integers with scales for rows or groups, or is stored under several names; as merge_adapters
/// \throws Error  as find_formulas
std::unique_ptr<Reader> merge_and_requantize(std::unique_ptr<Reader> base, const QuantizationFacts& facts,
                                             std::vector<Adapter> adapters, std::vector<MergedAdapter>& counts,
                                             std::int64_t& packed);

}  // namespace shard
