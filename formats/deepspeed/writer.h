/// \file
/// Writes a DeepSpeed save for a different number of data-parallel ranks, or as a universal checkpoint.
#pragma once

#include "formats/format.h"

namespace shard::deepspeed {

/// Lays out the same save for other ranks: same stage, same forms, every object kept. The result is a folder for the
/// engine's load_checkpoint: `latest` and the folder of the tag, with the files of each rank.
/// \throws Error  as open (reader.h); kUnsupported  what regroup (groups.h) refuses.
Remake repartition(const Source& source, const OpenOptions& open, const RemakeOptions& options);

/// Lays out a universal checkpoint: a folder per parameter, whole tensors, no ranks. The result is a folder for
/// load_checkpoint with load_universal: `latest_universal` and the folder of the tag.
///
/// Source: deepspeed/checkpoint/ds_to_universal.py and universal_checkpoint.py of 0.18.2.
/// \throws Error  as open (reader.h); kInvalidArgument  a number of ranks; kUnsupported  a save without ZeRO or with a
///   list of lean states; a name that cannot be a folder's.
Remake make_universal(const Source& source, const OpenOptions& open, const RemakeOptions& options);

}  // namespace shard::deepspeed
