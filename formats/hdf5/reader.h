/// \file
/// Reading HDF5. Inside formats/hdf5 only.
#pragma once

#include <memory>

#include "formats/format.h"

namespace shard::hdf5 {

bool detect(const Source& source);
std::unique_ptr<Reader> open(const Source& source, const OpenOptions& options);

}  // namespace shard::hdf5
