/// \file
/// Errors of the ShardedTensor API: c10's, whose types say what Python's would (c10::ValueError, IndexError, TypeError,
/// NotImplementedError; RuntimeError and AssertionError are plain c10::Error), and one that c10 lacks.
///
/// What the ranks' group throws stays a shard::Error (kPeer). `what_without_backtrace()` is the text for people.
#pragma once

#include <c10/util/Exception.h>

namespace shard {

/// Python's AttributeError: a module has no parameter of that name.
class AttributeError : public c10::Error {
  using c10::Error::Error;
};

}  // namespace shard

/// Throws shard::AttributeError unless `condition`; the rest is the message, as in TORCH_CHECK_VALUE.
#define SHARD_CHECK_ATTRIBUTE(condition, ...)                                                             \
  do {                                                                                                    \
    if (!(condition)) {                                                                                   \
      throw ::shard::AttributeError({__func__, __FILE__, static_cast<uint32_t>(__LINE__)}, c10::str(__VA_ARGS__)); \
    }                                                                                                     \
  } while (false)
