/// \file
/// Writes a save as a universal checkpoint: a folder of each parameter, whole tensors, no ranks.
///
/// Source: deepspeed/checkpoint/ds_to_universal.py and universal_checkpoint.py of 0.18.2.
#pragma once

#include <memory>

#include "formats/format.h"

namespace shard::deepspeed {

/// A folder that holds zero/optimizer_state.pt, or whose file `latest_universal` names one. By names alone.
bool detect_universal(const Source& source);

/// Reads the pickles of all files, not their tensors. \throws Error  as open (reader.h)
std::unique_ptr<Reader> open_universal(const Source& source, const OpenOptions& options);

/// A folder that load_checkpoint takes with load_universal: `latest_universal` and the folder of the tag.
/// \throws Error  as open (reader.h); kInvalidArgument  a number of ranks; kUnsupported  a save without ZeRO or with a
///   list of lean states; a name that cannot be a folder's.
Remake make_universal(const Source& source, const OpenOptions& open, const RemakeOptions& options);

}  // namespace shard::deepspeed
