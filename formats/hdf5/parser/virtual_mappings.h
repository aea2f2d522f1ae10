/// \file
/// Which boxes of other datasets make a virtual one. Inside formats/hdf5/parser only.
#pragma once

#include "formats/hdf5/library/handle.h"
#include "formats/hdf5/parser/describe_type.h"
#include "formats/hdf5/parser/kept.h"

namespace shard::hdf5 {

/// \throws Refusal  mappings that are not boxes: unlimited, of single points, of different shapes
std::vector<VirtualMapping> read_mappings(hid_t properties, Kept& kept);

}  // namespace shard::hdf5
