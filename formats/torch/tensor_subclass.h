/// \file
/// Tensors that pickles rebuild as objects of a subclass.
#pragma once

#include <string_view>

#include "libshard/core/value.h"

namespace shard::torch_save {

/// The class ("module.Name") of a tensor that `value`, or a Parameter around it, rebuilds as a subclass; otherwise
/// empty.
std::string_view tensor_subclass(const Value& value);

}  // namespace shard::torch_save
