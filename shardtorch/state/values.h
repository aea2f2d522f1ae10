/// \file
/// Converts values of state dicts to the catalog's values, and back.
///
/// Errors name an unsupported value by its path of keys and indices: Error::tensor() is "model.3.weight".
#pragma once

#include <ATen/core/ivalue.h>

#include <functional>
#include <optional>

#include "libshard/core/value.h"
#include "shardtorch/state/state_dict.h"

namespace shard {

using ToValue = std::function<Value*(const at::Tensor&)>;
using FromValue = std::function<std::optional<c10::IValue>(const Value&)>;

/// Converts None, bool, int, double, complex, string, and lists, tuples and dicts of these. `tensor` returns the value
/// for a tensor. A container that appears twice becomes one node. Ownership: `arena` owns the result.
/// \throws Error kUnsupported  any other kind of value, by its type; a string that is not UTF-8; containers nested too
///   deeply, such as one that contains itself.
Value* to_value(Arena& arena, const c10::IValue& value, const ToValue& tensor);
/// Converts a whole state to a dict.
Value* to_value(Arena& arena, const StateDict& state, const ToValue& tensor);

/// Converts in the opposite direction. `special` is called for every value that is none of the above (tensors, calls)
/// and may decline. Its result for a node is used wherever the node appears. Lists and dicts whose elements have one
/// type record that type, as torch's own do. An OrderedDict becomes a dict. Its `_metadata` (versions of Python
/// modules) has no meaning here.
/// \throws Error kUnsupported  a value that `special` declined, by its type; keys other than a string, number or bool;
///   containers nested too deeply.
c10::IValue to_ivalue(const Value& value, const FromValue& special = nullptr);
/// Converts a dict whose keys are strings. \throws Error kUnsupported  any other root or key.
StateDict to_state_dict(const Value& root, const FromValue& special);

}  // namespace shard
