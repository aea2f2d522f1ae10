/// \file
/// Loops that are compiled for any processor and for AVX2.
#pragma once

#include "libshard/core/processor.h"

namespace shard {

template <auto kLoop, class Result, class... Arguments>
Result run_anywhere(Arguments... arguments) {
  return kLoop(arguments...);
}

#if defined(__x86_64__)
template <auto kLoop, class Result, class... Arguments>
[[gnu::target("avx2")]] Result run_with_avx2(Arguments... arguments) {
  return kLoop(arguments...);
}
#endif

/// The version of a loop for this processor. The argument is the loop again, for its type.
/// \pre `kLoop` is [[gnu::always_inline]], so that each version is compiled for its own instructions
template <auto kLoop, class Result, class... Arguments>
auto for_processor(Result (*)(Arguments...)) -> Result (*)(Arguments...) {
#if defined(__x86_64__)
  if (has_avx2()) return run_with_avx2<kLoop, Result, Arguments...>;
#endif
  return run_anywhere<kLoop, Result, Arguments...>;
}

}  // namespace shard
