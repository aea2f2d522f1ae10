/// \file Checks that strided views stay inside their storages.
#pragma once

#include <cstdint>
#include <string_view>

#include "libshard/catalog/catalog.h"

namespace shard {

/// The number of the last element that a view accesses. \pre no size is 0
/// \throws Error kCorruption  a negative stride or `first`, or a number past 63 bits.
std::int64_t last_element(Dims sizes, Dims strides, std::int64_t first);

/// Checks that the view is inside `storage`. A view without elements may be anywhere.
/// \throws Error kCorruption  of kind out_of_bounds, naming `tensor`.
void check_view(std::string_view tensor, Dims sizes, Dims strides, std::int64_t first, DType dtype,
                const Storage& storage);

}  // namespace shard
