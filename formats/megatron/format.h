/// \file
/// The megatron format's entry in the registry. Bytes, limits and refusals: README.md beside this file.
#pragma once

#include "formats/format.h"

namespace shard {

extern const Format kMegatronFormat;

}  // namespace shard
