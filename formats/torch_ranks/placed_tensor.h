/// \file
/// Plain tensors whose Python attributes state which pieces of a whole tensor they hold (torch 2.15:
/// CheckpointableTensor): global_shape, global_offsets, local_offsets and local_sizes. What lies between the pieces is
/// padding.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "formats/torch/tensor_pickle.h"
#include "libshard/catalog/catalog.h"

namespace shard::torch_ranks {

/// A box of a tensor inside the tensor that a rank holds.
struct PlacedPiece {
  Dims offsets, sizes;  ///< In the whole tensor.
  Dims from;            ///< Where it begins in the rank's tensor.
};

struct PlacedTensorValue {
  torch_save::TensorView view;
  Dims shape;  ///< Of the whole tensor.
  std::vector<PlacedPiece> pieces;
  bool requires_grad = false;
};

/// The pieces that `value` states if it rebuilds such a tensor; nothing if it is something else.
/// \throws Error kCorruption  its attributes contradict one another.
std::optional<PlacedTensorValue> as_placed_tensor(Arena& arena, const Value& value);

}  // namespace shard::torch_ranks
