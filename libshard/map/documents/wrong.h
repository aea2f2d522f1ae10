/// \file
/// The error of a map that contradicts itself or what it is used on. Inside libshard/map only.
#pragma once

#include <string>

#include "libshard/core/error.h"

namespace shard {

inline Error wrong(const std::string& message) { return Error(ErrorCode::kInvalidArgument, message); }

}  // namespace shard
