/// \file
/// All groups and datasets of a file, in the order that Entry promises. Inside formats/hdf5/parser only.
#pragma once

#include "formats/hdf5/parser/dataset.h"

namespace shard::hdf5 {

/// Sends every entry, and what is skipped. \throws Refusal  its text names the object; LibraryError for the root
void walk(const WholeFile& file, hid_t root, std::int64_t most_entry_bytes);

}  // namespace shard::hdf5
