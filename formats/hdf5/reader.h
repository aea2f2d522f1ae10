/// \file
/// Reads HDF5: one file, files of ranks under a master of virtual datasets, or Keras' files under their weights.json.
#pragma once

#include <memory>

#include "formats/format.h"

namespace shard::hdf5 {

/// Datasets are tensors, groups are the parts of their names; attributes and datasets of strings are objects. See
/// README.md.
std::unique_ptr<Reader> open(const Source& source, const OpenOptions& options);

}  // namespace shard::hdf5
