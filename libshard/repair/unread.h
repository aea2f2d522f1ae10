/// \file
/// Content of a checkpoint that this build does not read, and that may be whole.
#pragma once

#include "libshard/core/error.h"

namespace shard {

/// Whether an error is of such content: a class outside the list, a kind of tensor or file that is not supported. It is
/// no damage, though `is_damage` (salvage.h) may be true for it.
inline bool is_unread(const Error& error) {
  return error.kind() == FindingKind::kForbiddenGlobal || (error.code() == ErrorCode::kUnsupported && !error.kind());
}

}  // namespace shard
