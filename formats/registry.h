/// \file
/// The list of formats, written out, and what a path holds.
#pragma once

#include <span>
#include <string_view>

#include "formats/format.h"

namespace shard {

/// All formats of this build.
std::span<const Format> formats();
/// \throws Error kInvalidArgument  an unknown name (with the nearest one); kUnsupported  a known one not in this build.
const Format& format_named(std::string_view name);

/// What `source` is.
/// \throws Error kNotFound  it does not exist; kCorruption  it fits none or two, naming them; kUnsupported  it is a
///   known kind that this build cannot read (ByteCheckpoint, TorchScript, GGUF, ...), by name.
const Format& detect_format(const Source& source);

}  // namespace shard
