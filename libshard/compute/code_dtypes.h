/// \file
/// The dtypes that tensors of a quantized module may have. Pure. Inside libshard/compute only.
#pragma once

#include <cstdint>
#include <optional>

#include "libshard/catalog/catalog.h"
#include "libshard/compute/formula.h"

namespace shard {

/// The first tensor whose dtype has no meaning in its place, such as scales that are integers. Index into the catalog.
std::optional<std::uint32_t> find_wrong_dtype(const Catalog& catalog, const ScaledCodes& codes);

}  // namespace shard
