/// \file
/// The format hdf5. Only for use inside formats/hdf5: it is a plug-in, which formats/registry.h opens.
#pragma once

#include "formats/format.h"

namespace shard {

extern const Format kHdf5Format;

}  // namespace shard
