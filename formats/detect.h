/// \file
/// Recognises what a path holds.
#pragma once

#include "formats/format.h"

namespace shard {

/// The format of `source`, by its content. Plug-ins are loaded where no other format fits.
/// \throws Error kNotFound  it does not exist; kCorruption  it fits none or two, naming them, or it is a folder above
///   checkpoints, suggesting those; kUnsupported  it is a known kind that this build cannot read (ByteCheckpoint,
///   TorchScript, GGUF, ...), by name.
const Format& detect_format(const Source& source);

}  // namespace shard
