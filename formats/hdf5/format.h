/// \file
/// The format hdf5: its entry, and the functions behind it. Inside formats/hdf5 only, because it is a plug-in, which
/// formats/registry.h opens.
#pragma once

#include <memory>

#include "formats/format.h"

namespace shard {

extern const Format kHdf5Format;

namespace hdf5 {

// Reads HDF5: one file, files of ranks under a master of virtual datasets, or Keras' files under their
// weights.json.

/// Datasets are tensors, groups are the parts of their names; attributes and datasets of strings are objects. See
/// README.md.
std::unique_ptr<Reader> open(const Source& source, const OpenOptions& options);

// Writes HDF5: one file, or files of tensors or of ranks with a master file of virtual datasets.

/// \throws Error kInvalidArgument  from Writer::place: several files into a single-file DST.
/// \throws Error kUnsupported  from Writer::place, by name: objects that are opaque or contain tensors, more than 32
///   dimensions, pieces of packed elements that are not runs of bytes.
std::unique_ptr<Writer> make_writer(const WriteOptions& options);

}  // namespace hdf5

}  // namespace shard
