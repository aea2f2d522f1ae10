/// \file
/// Recognises checkpoints that this build cannot read, so that they are refused by name.
#pragma once

#include <optional>
#include <string>

#include "formats/format.h"

namespace shard {

/// Kinds that one of the formats here would take for its own: TorchScript (a zip), ByteCheckpoint (a folder
/// with .metadata), Git LFS pointers. Call it before the formats' detect. \returns the Error to throw, or
/// nothing.
std::optional<Error> foreign_look_alike(const Source& source);

/// Kinds that no format here claims: GGUF, HDF5, torchsnapshot, DeepSpeed, ... Call it afterwards.
std::optional<Error> foreign_kind(const Source& source);

/// What a version control system or a cache left in the place of a file whose content was never fetched: a pointer, or
/// a link that leads nowhere. Of kind missing_file.
std::optional<Error> stand_in_of(const SourceStore& store, const std::string& path);

}  // namespace shard
