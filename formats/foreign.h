/// \file
/// Checkpoints of other makers, known by their content so that they can be refused by name.
#pragma once

#include <optional>
#include <string>

#include "formats/format.h"

namespace shard {

/// Kinds that would pass for one of ours: TorchScript (a zip), ByteCheckpoint (a folder with .metadata), Git LFS
/// pointers. To be asked before the formats are. \returns the Error to throw, or nothing.
std::optional<Error> foreign_look_alike(const Source& source);

/// Kinds that none of ours claims: GGUF, HDF5, torchsnapshot, per-rank files, ... To be asked afterwards.
std::optional<Error> foreign_kind(const Source& source);

}  // namespace shard
