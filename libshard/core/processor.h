/// \file
/// What the processor and the system that runs it allow beyond the architecture's oldest. Asked once; threads may ask.
#pragma once

namespace shard {

bool has_avx();   ///< False on other architectures than x86-64.
bool has_avx2();  ///< The same.

}  // namespace shard
