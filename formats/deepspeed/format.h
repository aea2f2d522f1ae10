/// \file
/// The entries of deepspeed and deepspeed-universal in the registry. Bytes, limits and refusals: README.md beside this
/// file.
#pragma once

#include "formats/format.h"

namespace shard {

extern const Format kDeepSpeedFormat;
extern const Format kDeepSpeedUniversalFormat;

namespace deepspeed {

/// Whether a reader is to read the module's copies of parameters, of 16 bits, instead of the optimizer's masters.
bool wants_module(const OpenOptions& options);

}  // namespace deepspeed

}  // namespace shard
