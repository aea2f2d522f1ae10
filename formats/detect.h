/// \file
/// Recognises what a path holds.
#pragma once

#include <vector>

#include "formats/finder.h"
#include "formats/format.h"

namespace shard {

/// What a source is: a checkpoint, or a folder above checkpoints.
struct Recognised {
  const Format* format = nullptr;        ///< Null: it is not a checkpoint itself.
  std::vector<FoundCheckpoint> below{};  ///< Then those in it, at least one; see find_checkpoints.
};

/// As detect_format, but that a folder above checkpoints is an answer. \throws Error as detect_format
Recognised recognise(const Source& source);

/// The checkpoints in a folder and below it, see find_checkpoints. Empty where `source` is not one folder.
std::vector<FoundCheckpoint> checkpoints_below(const Source& source);

/// The format of `source`, by its content. Plug-ins are loaded where no other format fits.
/// \throws Error kNotFound  it does not exist; kCorruption  it fits none or two, naming them, or it is a folder above
///   checkpoints, suggesting those; kUnsupported  it is a known kind that this build cannot read (ByteCheckpoint,
///   TorchScript, GGUF, ...), by name.
const Format& detect_format(const Source& source);

}  // namespace shard
