/// \file
/// Objects of classes outside the list, as pickle::load reads them under LoadOptions::opaque_unknown.
///
/// Such an object is a kOpaque. If its pickle only fills a built-in type (str, int, float, bytes, tuple, list, dict),
/// it is a value of that type. If a tensor's storage is below it, it is a call of the kOpaque class, so that nothing
/// drops the tensors in silence. A tensor of such a class stays the call of torch that rebuilds it. With
/// LoadOptions::behind_opaque all of them are kOpaque.
#pragma once

#include "libshard/core/value.h"

namespace shard::pickle {

/// True for an object of a class outside the list that holds tensors. Its only argument is one of their storages.
inline bool is_foreign_holder(const Value& value) {
  return value.kind == ValueKind::kCall && value.callee()->kind == ValueKind::kOpaque;
}

}  // namespace shard::pickle
