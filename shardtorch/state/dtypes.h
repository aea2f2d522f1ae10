/// \file
/// torch's element types and ours, matched by their common names.
#pragma once

#include <c10/core/ScalarType.h>

#include <string>

#include "libshard/core/dtype.h"
#include "libshard/core/error.h"

namespace shard {

/// \throws Error kUnsupported  a type that has no name in files.
inline DType dtype_of(at::ScalarType type) {
  if (const std::optional<DType> known = dtype_of_name(c10::getDtypeNames(type).first)) return *known;
  throw Error(ErrorCode::kUnsupported, std::string("tensors of dtype ") + c10::toString(type) + " are not supported");
}

/// \throws Error kUnsupported  a type that torch lacks (float6).
inline at::ScalarType scalar_type_of(DType dtype) {
  const std::string name(dtype_name(dtype));
  const auto& known = c10::getStringToDtypeMap();
  if (const auto found = known.find(name); found != known.end()) return found->second;
  throw Error(ErrorCode::kUnsupported, "torch has no tensors of dtype " + name);
}

}  // namespace shard
