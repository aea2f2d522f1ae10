/// \file
/// Finds tensors among the values of a torch.save file.
#pragma once

#include <optional>
#include <string_view>

#include "formats/parts/pickle/attributes.h"
#include "formats/torch/saved_file.h"
#include "libshard/catalog/tree.h"
#include "libshard/core/error.h"

namespace shard::torch_save {

/// Distinguishes tensors and Parameters from other values. Views are stored in the arena, which must outlive the
/// finder.
/// Threads: one at a time.
class TensorFinder {
 public:
  explicit TensorFinder(Arena& arena) : arena_(arena), hidden_(arena) {}

  /// The view of a tensor; nothing for any other value. \throws Error kCorruption  the tensor is damaged.
  std::optional<TensorView> find(const Value& value) {
    const bool wrapped = is_parameter(value, hidden_);
    return as_tensor(arena_, wrapped ? *value.items()[0] : value);
  }
  /// \throws Error kCorruption  the value is not a tensor; with `what` and its type.
  TensorView need(const Value& value, std::string_view what) {
    const std::optional<TensorView> view = find(value);
    if (!view) throw pickle::malformed(what, "it is not a tensor").found(type_name(value));
    return *view;
  }

 private:
  Arena& arena_;
  HiddenTensors hidden_;
};

}  // namespace shard::torch_save
