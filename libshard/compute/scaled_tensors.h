/// \file
/// Tensors times a number plus a number, and back: zero-centred norms, and weights that contain a factor.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include "libshard/checkpoint/reader.h"
#include "libshard/compute/computed_reader.h"
#include "libshard/core/dtype.h"

namespace shard {

/// How a tensor of a reader is replaced.
struct ScaledTensor {
  std::uint32_t tensor = 0;  ///< Its index in the reader's catalog.
  float scale = 1, add = 0;  ///< The scale is not 0.
  bool is_inverse = false;   ///< (value - add) / scale in place of value * scale + add.
};

/// The reader with these tensors replaced, computed in float32 as they are read and rounded once to `dtype`, or else to
/// their own dtype. All tensors keep their names and indices. \pre each tensor occurs once, and is float32, float16 or
/// bfloat16
/// \param computed  the readers that compute tensors of `inner`, which are not rounded before the arithmetic
/// \throws Error kUnsupported  ranks have different values of a tensor
std::unique_ptr<Reader> with_scaled_tensors(std::unique_ptr<Reader> inner, std::span<const ScaledTensor> tensors,
                                            std::optional<DType> dtype, ComputedReaders computed = {});

}  // namespace shard
