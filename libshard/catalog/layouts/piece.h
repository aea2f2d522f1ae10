/// \file Consecutive pieces of a dimension. Pure.
#pragma once

#include <cstdint>

#include "libshard/catalog/layouts/split.h"

namespace shard {

/// Piece `index` of [0, n) in consecutive pieces of `size`; empty, at n, past the end. CutRule::kChunk's parts are
/// pieces of ceil(n / parts). \pre no number is negative
DimRange piece_of(std::int64_t n, std::int64_t size, std::int64_t index);

}  // namespace shard
