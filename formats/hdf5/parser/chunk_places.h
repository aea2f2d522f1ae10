/// \file
/// Where the chunks of a dataset lie. Inside formats/hdf5/parser only.
#pragma once

#include "formats/hdf5/described.h"
#include "formats/hdf5/library/handle.h"

namespace shard::hdf5 {

struct ChunkedLayout {
  hid_t dataset, properties;  ///< Open.
  std::int64_t file_bytes = 0, base_offset = 0;
};

/// Fills `entry.chunks`, by number. \pre type, shape, chunk shape and filters are set
/// Cost: one walk over the index of chunks, of any kind.
void find_chunks(const ChunkedLayout& layout, Entry& entry);

}  // namespace shard::hdf5
