/// \file
/// Implements h5py's filter lzf for libhdf5, which reads chunks of strings itself. Inside formats/hdf5/parser only.
#pragma once

#include <hdf5.h>

namespace shard::hdf5 {

/// Its number at the HDF Group.
inline constexpr H5Z_filter_t kLzfFilter = 32000;

/// Enables libhdf5 to decode it, but not to encode. \throws LibraryError
void register_lzf_filter();

}  // namespace shard::hdf5
