/// \file
/// A run of bytes of a file as a file of its own. Inside formats/hdf5 only.
#pragma once

#include <cstdint>
#include <memory>

#include "libshard/io/source_store.h"

namespace shard::hdf5 {

/// Bytes [offset, offset + bytes) of `file`. \pre they are in it
/// Threads: as `file`.
std::unique_ptr<RandomReader> file_part(std::shared_ptr<const RandomReader> file, std::int64_t offset,
                                        std::int64_t bytes);

}  // namespace shard::hdf5
