/// \file
/// The entries of deepspeed and deepspeed-universal in the registry. Bytes, limits and refusals: README.md beside this
/// file.
#pragma once

#include "formats/format.h"

namespace shard {

extern const Format kDeepSpeedFormat;
extern const Format kDeepSpeedUniversalFormat;

}  // namespace shard
