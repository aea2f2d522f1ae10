/// \file
/// Objects of classes outside the list, as pickle::load reads them with LoadOptions::opaque_unknown.
///
/// Such an object is a kOpaque, with three exceptions. If its pickle only fills a built-in type (str, int, float,
/// bytes, tuple, list, dict), it is a value of that type. If it contains a tensor's storage, it is a call of the
/// kOpaque class, so that no code drops the tensors unnoticed. So do dicts and sets with tensors as keys or elements,
/// of the "class" builtins.dict, builtins.set or collections.OrderedDict. A tensor of such a class stays the torch call
/// that rebuilds it. With LoadOptions::behind_opaque all objects are kOpaque.
#pragma once

#include "libshard/core/value.h"

namespace shard::pickle {

/// True for an opaque object that contains tensors. Its only argument is one of their storages.
inline bool is_foreign_holder(const Value& value) {
  return value.kind == ValueKind::kCall && value.callee()->kind == ValueKind::kOpaque;
}

}  // namespace shard::pickle
