/// \file
/// Reads a chunk that is too large to be decoded whole, in bounded memory. Inside formats/hdf5 only.
#pragma once

#include <memory>

#include "formats/hdf5/chunk_view.h"

namespace shard::hdf5 {

/// See decoded_chunk. A compressed chunk streams through one decoder. A compressed and shuffled one streams through one
/// decoder for each byte of an element, and is decoded once before that to set them up. A checksum is compared in one
/// pass before the first byte.
/// \throws Error kUnsupported  from read_at: shuffled elements of more than 64 bytes.
/// Memory: up to 40 MiB. Nothing is read before the first read.
std::shared_ptr<const RandomReader> large_chunk(const FilteredChunk& chunk);

}  // namespace shard::hdf5
