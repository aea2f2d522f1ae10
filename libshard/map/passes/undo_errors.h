/// \file Errors of undoing a map, for separate tensors and for those in flat buffers. Inside libshard/map only.
#pragma once

#include <cstdint>
#include <string_view>

#include "libshard/core/dtype.h"
#include "libshard/core/error.h"

namespace shard {

/// kInvalidArgument: two stored tensors are the same part of one rank. \param rank  -1: a part that is equal on all
/// ranks
Error held_twice(std::string_view tensor, std::int64_t rank);
/// kNotFound: a rank does not have the part that the map assigns to it.
Error part_missing(std::string_view tensor, std::int64_t rank);
/// kCorruption of kind dtype_mismatch.
Error dtypes_differ(std::string_view tensor, DType expected, DType found);

}  // namespace shard
