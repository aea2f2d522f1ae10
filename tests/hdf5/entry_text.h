/// \file
/// Replies of the parser of HDF5 files, as lines of text that a test can show and compare.
#pragma once

#include <string>

#include "formats/hdf5/described.h"

namespace shard::hdf5 {

/// "dataset a/b: integer le signed 8 bytes, [2, 3], contiguous at 2048 of 48; .note='x'".
std::string to_text(const Entry& entry);

}  // namespace shard::hdf5
