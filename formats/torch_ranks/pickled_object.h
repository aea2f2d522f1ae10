/// \file
/// Tensor subclasses inside pickles: parses the calls that rebuild a ShardedTensor or DTensor, argument by argument.
#pragma once

#include <string_view>

#include "formats/parts/pickle/attributes.h"
#include "libshard/core/arena.h"
#include "libshard/core/dtype.h"
#include "libshard/core/value.h"

namespace shard::torch_ranks {

using pickle::attribute;
using pickle::boolean;
using pickle::class_name;
using pickle::dims;
using pickle::dtype;
using pickle::malformed;
using pickle::named;
using pickle::natural;
using pickle::naturals;
using pickle::need;
using pickle::need_class;
using pickle::sequence;
using pickle::string;

/// The content of a call `torch._tensor._rebuild_from_type_v2(_rebuild_wrapper_subclass, class, arguments, state)`.
struct Subclass {
  std::string_view name;  ///< The class name: "DTensor", "ShardedTensor", "AsyncCollectiveTensor".
  Value* arguments = nullptr;
  Value* state = nullptr;
};

/// The class name in a call that rebuilds a tensor subclass of torch.distributed; empty for any other value.
std::string_view subclass_name(const Value& value);
/// \pre subclass_name(value) is not empty.
Subclass subclass(const Value& value);

/// The arguments of _rebuild_wrapper_subclass, which describe the whole tensor.
struct Wrapper {
  DType dtype{};
  Dims shape;
  bool requires_grad = false;
  std::string_view device = "cpu";  ///< With its index: "cuda:1".
};
Wrapper wrapper(Arena& arena, const Subclass& subclass);

/// The attribute `dim` of a placement, which counts from the end if it is negative.
/// \throws Error kCorruption  it is not a dimension. The message begins with `what`.
int dim_of(const Value& placement, int dimensions, std::string_view what);

/// "cuda:1" from a torch.device or a string.
std::string_view device(const Value& value, Arena& arena, std::string_view what);

}  // namespace shard::torch_ranks
