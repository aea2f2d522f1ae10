/// \file
/// Average: the weighted mean of checkpoints with the same tensors.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "libshard/checkpoint/reader.h"
#include "libshard/compute/computed_reader.h"
#include "libshard/core/dtype.h"

namespace shard {

/// The weights of an exponential moving average of `count` states, the oldest first: beta^(n-1) for state 1, and
/// (1 - beta) * beta^(n-k) for each later state k. \pre count > 0
std::vector<float> moving_average_weights(std::size_t count, double beta);

struct AverageOptions {
  std::vector<float> weights;       ///< One per checkpoint. They need not add up to 1.
  std::vector<std::string> labels;  ///< The checkpoints' names in messages.
  /// By checkpoint: the readers that compute its tensors, which are not rounded before the sum. Empty: none.
  std::vector<ComputedReaders> computed{};
  std::optional<DType> dtype{};  ///< The dtype of averaged tensors. Default: the first checkpoint's.
  std::function<bool(const Tensor& tensor)> takes_tensor{};  ///< Empty: all.
  std::function<bool(const Object& object)> takes_object{};  ///< Empty: all.
};

/// The sum of weight * checkpoint, by tensor name: in float32, in the order of `readers`, rounded once. Shapes, layout,
/// objects and metadata are those of the first checkpoint. Tensors that share storage there are computed once.
/// Integers and booleans are compared here, and must be equal.
/// \throws Error kCorruption  the checkpoints have different names or shapes, or different integers: names the first
/// \throws Error kUnsupported  a tensor of float64, of complex numbers, of floats of 8 bits or less, or of a
///   quantized module; ranks have different values of a tensor
/// \pre readers.size() == weights.size() == labels.size() > 0. Cost: reads the integers of all checkpoints.
std::unique_ptr<Reader> averaged(std::vector<std::unique_ptr<Reader>> readers, const AverageOptions& options);

}  // namespace shard
