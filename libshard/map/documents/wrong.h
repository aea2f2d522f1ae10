/// \file The error for a map that contradicts itself or its input. Inside libshard/map only.
#pragma once

#include <string>

#include "libshard/core/error.h"

namespace shard {

inline Error wrong(const std::string& message) { return Error(ErrorCode::kInvalidArgument, message); }

}  // namespace shard
