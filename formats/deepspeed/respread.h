/// \file
/// Writes a save for another number of data-parallel ranks: same stage, same forms, every object kept.
#pragma once

#include "formats/format.h"

namespace shard::deepspeed {

/// A folder that the engine's load_checkpoint takes: `latest` and the folder of the tag, with the files of each rank.
/// \throws Error  as open (reader.h); kUnsupported  what regroup (groups.h) refuses.
Remake respread(const Source& source, const OpenOptions& open, const RemakeOptions& options);

}  // namespace shard::deepspeed
