/// \file
/// Tensors that pickles wrap into more calls: those of devices without storages, and those with Python attributes.
/// Private to this folder; see as_tensor.
#pragma once

#include <optional>

#include "formats/torch/tensor_pickle.h"

namespace shard::torch_save {

/// A call of _rebuild_tensor, _rebuild_tensor_v2 or _rebuild_tensor_v3.
std::optional<TensorView> as_plain_tensor(Arena& arena, const Value& value);

/// A call of _rebuild_device_tensor_from_cpu_tensor, _rebuild_device_tensor_from_numpy (_rebuild_xla_tensor), or of
/// _rebuild_from_type_v2 (_rebuild_from_type) around one of all those with the class torch.Tensor or a Buffer. Also a
/// wrapper subclass outside the list whose state holds one plain tensor, of the wrapper's own shape and dtype. Nothing
/// where the value that it stands for cannot be told: a cast on the way, another subclass.
std::optional<TensorView> as_wrapped_tensor(Arena& arena, const Value& value);

}  // namespace shard::torch_save
