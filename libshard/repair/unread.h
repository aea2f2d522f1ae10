/// \file
/// Content of a checkpoint that this build does not read, and that may be whole.
#pragma once

#include "libshard/core/error.h"

namespace shard {

/// True for an error of such content: a class outside the list, or a kind of tensor or file that is not supported. It
/// is no damage, though `is_damage` (findings.h) may be true for it. An unsupported form that a flipped bit can make of
/// a sound file, such as flags or a method of a zip record, has the kind bad_header and counts as damage.
inline bool is_unread(const Error& error) {
  return error.kind() == FindingKind::kForbiddenGlobal || (error.code() == ErrorCode::kUnsupported && !error.kind());
}

}  // namespace shard
