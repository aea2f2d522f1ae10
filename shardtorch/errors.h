/// \file
/// Errors of this library's torch API:
///
/// - invalid calls: c10's errors, whose types match Python's (c10::ValueError, IndexError, TypeError,
/// NotImplementedError; RuntimeError and AssertionError are plain c10::Error), and AttributeError, which c10 lacks;
/// - problems with files, memory, other ranks, and checkpoints (checkpoint/): shard::Error.
///
/// All of them are std::exceptions. If this library throws, what() is the message without a backtrace. In torch's own
/// exceptions what() includes a backtrace, which message_of removes. code_of returns a code for both kinds.
#pragma once

#include <c10/util/Exception.h>

#include <cstdint>
#include <optional>
#include <string>

#include "libshard/core/error.h"

namespace shard {

/// Python's AttributeError: a module has no parameter of that name.
class AttributeError : public c10::Error {
  using c10::Error::Error;
};

/// The text for a user: without a backtrace. A shard::Error's is describe() (libshard/core/error_text.h): rank, file,
/// tensor and message, then the reason with the expected and the actual value, and the hint, each on a line.
std::string message_of(const std::exception& error);

/// A shard::Error's own code. For c10's: kUnsupported for a NotImplementedError, kPeer for errors of a process group
/// (c10::DistError), otherwise kInvalidArgument. Nothing for other exceptions.
std::optional<ErrorCode> code_of(const std::exception& error);

/// Does the same as c10::maybe_wrap_dim, but its error, with the same text, has no backtrace. \throws c10::IndexError
std::int64_t wrapped_dim(std::int64_t dim, std::int64_t dims, bool wrap_scalar = true);

}  // namespace shard

/// Does the same as torch's TORCH_CHECK_VALUE and similar macros, but without a backtrace: throws `type` unless
/// `condition` holds. The other arguments are the message.
#define SHARD_CHECK_AS(type, condition, ...)               \
  do {                                                     \
    if (!(condition)) throw type(::c10::str(__VA_ARGS__)); \
  } while (false)
#define SHARD_CHECK(condition, ...) SHARD_CHECK_AS(::c10::Error, condition, __VA_ARGS__)
#define SHARD_CHECK_VALUE(condition, ...) SHARD_CHECK_AS(::c10::ValueError, condition, __VA_ARGS__)
#define SHARD_CHECK_INDEX(condition, ...) SHARD_CHECK_AS(::c10::IndexError, condition, __VA_ARGS__)
#define SHARD_CHECK_TYPE(condition, ...) SHARD_CHECK_AS(::c10::TypeError, condition, __VA_ARGS__)
#define SHARD_CHECK_NOT_IMPLEMENTED(condition, ...) SHARD_CHECK_AS(::c10::NotImplementedError, condition, __VA_ARGS__)
#define SHARD_CHECK_ATTRIBUTE(condition, ...) SHARD_CHECK_AS(::shard::AttributeError, condition, __VA_ARGS__)
