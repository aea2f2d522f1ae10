/// \file
/// TensorFinder: which values of a pickle are tensors, bare or in a Parameter.
#pragma once

#include <optional>
#include <string_view>

#include "formats/parts/pickle/attributes.h"
#include "formats/torch/saved_file.h"
#include "libshard/core/error.h"

namespace shard::torch_save {

/// For the values of one pickle. The views live in the arena. Not for several threads at once.
class TensorFinder {
 public:
  explicit TensorFinder(Arena& arena) : arena_(arena), hidden_(arena) {}

  /// Nothing for what is not a tensor. \throws Error kCorruption  see is_parameter and as_tensor
  std::optional<TensorView> find(const Value& value) {
    return as_tensor(arena_, is_parameter(value, hidden_) ? *value.items()[0] : value);
  }
  /// \throws Error kCorruption  also: it is not a tensor; `what` says what it is for
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
