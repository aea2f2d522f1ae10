/// \file
/// Writes a DeepSpeed save for a different number of data-parallel ranks, or as a universal checkpoint.
#pragma once

#include "formats/format.h"

namespace shard::deepspeed {

/// Lays out the same save for a different number of ranks. The stage, the forms and every object stay the same. The
/// result is a folder for the engine's load_checkpoint: `latest` and the folder of the tag, with the files of each
/// rank.
/// \throws Error  as open (reader.h); kUnsupported  see regroup (groups.h).
Remake repartition(const Source& source, const OpenOptions& open, const RemakeOptions& options);

/// Lays out a universal checkpoint: a folder per parameter, with whole tensors, independent of ranks. The result is a
/// folder for load_checkpoint with load_universal: `latest_universal` and the folder of the tag.
///
/// Source: deepspeed/checkpoint/ds_to_universal.py and universal_checkpoint.py of 0.18.2.
/// \throws Error  as open (reader.h); kInvalidArgument  a number of ranks was given; kUnsupported  a save without ZeRO
///   or with a list of lean states; a name that is not valid for a folder.
Remake make_universal(const Source& source, const OpenOptions& open, const RemakeOptions& options);

}  // namespace shard::deepspeed
