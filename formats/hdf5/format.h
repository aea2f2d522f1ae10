/// \file
/// The format hdf5. Inside formats/hdf5 only: it is a plug-in, which formats/registry.h opens.
#pragma once

#include "formats/format.h"

namespace shard {

extern const Format kHdf5Format;

}  // namespace shard
