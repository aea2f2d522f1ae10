/// \file
/// libhdf5's virtual file driver that reads through a Channel. Inside formats/hdf5/parser only.
#pragma once

#include "formats/hdf5/library/handle.h"
#include "formats/hdf5/parser/channel.h"

namespace shard::hdf5 {

/// Opens the one file that there is; any other name fails, as those that links and virtual datasets lead to.
/// \pre `channel` outlives all that is opened
FileHandle open_file(Channel& channel);

}  // namespace shard::hdf5
