/// \file
/// `NAME[0:8,:,3]`: a box of a tensor, by Python's rules.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "libshard/catalog/catalog.h"
#include "libshard/core/box.h"

namespace shard {

struct Slice {
  Box box;  ///< The selected part of the tensor.
  /// The shape of the result: the box's sizes without the dimensions that an index fixed.
  std::vector<std::int64_t> shape;
};

/// The whole tensor.
Slice whole(Dims shape);

/// Parses the text between the brackets. For each dimension, from the first on, it has `begin:end` (either may be
/// missing, negative ones count from the end, both are clamped) or an index, and `...` at most once. Other dimensions
/// are whole.
/// \throws Error kInvalidArgument  malformed, a step, an index out of range, more dimensions than `tensor` has.
Slice parse_slice(std::string_view text, Dims shape, std::string_view tensor);

/// A name with an optional slice. "w[0][1:3]" is the name "w[0]" and the slice "1:3". Without brackets at the end,
/// there is no slice.
struct SlicedName {
  std::string_view name, slice;
  bool has_slice = false;
};
SlicedName split_slice(std::string_view text);

/// A catalog whose only tensor is `box` of tensor number `tensor` in `catalog`. Storages keep their numbers, so that
/// the reader of `catalog` can read it. \pre the tensor is located. Ownership: borrows only the arenas of `catalog`.
Catalog sliced(const Catalog& catalog, std::uint32_t tensor, const Box& box);

}  // namespace shard
