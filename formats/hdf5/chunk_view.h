/// \file
/// The bytes of chunked datasets as plain elements: filters are undone on the way. Inside formats/hdf5 only.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "formats/hdf5/described.h"
#include "libshard/io/source_store.h"

namespace shard::hdf5 {

/// A stored chunk.
struct FilteredChunk {
  std::shared_ptr<const RandomReader> file;
  ChunkPlace place{};
  std::int64_t bytes = 0;  ///< Of its elements: the chunk's shape whole, also at an edge.
  std::span<const Filter> filters{};
  std::string shown{};  ///< The chunk, for messages.
};

/// The elements' bytes, as they lie in the chunk (big-endian ones still are). Deflated chunks may be read in any order:
/// small ones are decoded once and kept (held_bytes), larger ones are read through decoders in bounded memory. A
/// fletcher32 checksum is compared before the first byte is given out. \throws Error kCorruption (kind crc_mismatch,
/// bad_header)  from read_at Threads: safe.
std::shared_ptr<const RandomReader> decoded_chunk(const FilteredChunk& chunk);

/// `bytes` bytes of the element `fill` again and again; of zeros where it is empty.
std::shared_ptr<const RandomReader> constant_view(std::span<const std::byte> fill, std::int64_t bytes,
                                                  std::string name);

}  // namespace shard::hdf5
