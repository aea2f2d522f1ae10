/// \file Content of a checkpoint that this build does not read, and that may be intact.
#pragma once

#include "libshard/core/error.h"

namespace shard {

/// True for an error about such content: a class outside the list, or an unsupported kind of tensor or file. This is
/// not damage, even if `is_damage` (findings.h) is true for it. A flipped bit can turn an intact file into some
/// unsupported forms, such as flags or a method of a zip record. Errors about those have the kind bad_header and count
/// as damage.
inline bool is_unread(const Error& error) {
  return error.kind() == FindingKind::kForbiddenGlobal || (error.code() == ErrorCode::kUnsupported && !error.kind());
}

}  // namespace shard
