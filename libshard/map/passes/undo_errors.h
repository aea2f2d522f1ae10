/// \file
/// The errors of undoing a map on tensors that lie by themselves and in flat buffers alike. Inside libshard/map only.
#pragma once

#include <cstdint>
#include <string_view>

#include "libshard/core/dtype.h"
#include "libshard/core/error.h"

namespace shard {

/// kInvalidArgument: two stored tensors are one rank's part. \param rank  -1: of what all ranks hold alike
Error held_twice(std::string_view tensor, std::int64_t rank);
/// kNotFound: a rank does not have the part that the map gives it.
Error part_missing(std::string_view tensor, std::int64_t rank);
/// kCorruption of kind dtype_mismatch.
Error dtypes_differ(std::string_view tensor, DType expected, DType found);

}  // namespace shard
