/// \file
/// The entries of deepspeed and deepspeed-universal in the registry. README.md in this folder documents bytes, limits
/// and refusals.
#pragma once

#include "formats/format.h"

namespace shard {

extern const Format kDeepSpeedFormat;
extern const Format kDeepSpeedUniversalFormat;

namespace deepspeed {

/// Whether a reader is to read the module's 16-bit copies of parameters instead of the optimizer's master weights.
bool wants_module(const OpenOptions& options);

}  // namespace deepspeed

}  // namespace shard
