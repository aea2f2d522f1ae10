/// \file
/// Writes HDF5: one file, or files of tensors or of ranks with a master file of virtual datasets. README.md shows their
/// layout. Inside formats/hdf5 only.
#pragma once

#include <memory>

#include "formats/format.h"

namespace shard::hdf5 {

/// \throws Error kInvalidArgument  from Writer::place: several files into a single-file DST.
/// \throws Error kUnsupported  from Writer::place, by name: objects that are opaque or contain tensors, more than 32
///   dimensions, pieces of packed elements that are not runs of bytes.
std::unique_ptr<Writer> make_writer(const WriteOptions& options);

}  // namespace shard::hdf5
