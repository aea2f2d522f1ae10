/// \file
/// The vllm format's entry in the registry. README.md in this folder documents bytes, limits and refusals.
#pragma once

#include "formats/format.h"

namespace shard {

extern const Format kVllmFormat;

}  // namespace shard
