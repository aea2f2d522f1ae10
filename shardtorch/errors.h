/// \file
/// Errors of this library's API for torch, as one family:
///
/// - a call that makes no sense: c10's, whose types say what Python's would (c10::ValueError, IndexError, TypeError,
///   NotImplementedError; RuntimeError and AssertionError are plain c10::Error), and AttributeError, which c10 lacks;
/// - the world outside, files, memory and other ranks, and checkpoints (checkpoint/): shard::Error.
///
/// All are std::exceptions. what() of those that this library throws is the message alone; torch's own carry a
/// backtrace there, which message_of leaves out. code_of says of both sorts what happened.
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

/// What to tell a user: without a backtrace, and with the reason and the hint of a shard::Error, each on a line.
std::string message_of(const std::exception& error);

/// A shard::Error's own. Of c10's: kUnsupported for a NotImplementedError, kPeer for what a process group throws
/// (c10::DistError), else kInvalidArgument. Nothing for other exceptions.
std::optional<ErrorCode> code_of(const std::exception& error);

/// As c10::maybe_wrap_dim, but its error, with the same text, has no backtrace. \throws c10::IndexError
std::int64_t wrapped_dim(std::int64_t dim, std::int64_t dims, bool wrap_scalar = true);

}  // namespace shard

/// As torch's TORCH_CHECK_VALUE and so on, but without a backtrace: throws `type` unless `condition`; the rest is the
/// message.
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
