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
  std::string shown{};  ///< "chunk (3, 0) of dataset /w", for messages.
};

/// Chunks of up to so many bytes are decoded whole.
inline constexpr std::int64_t kWholeChunk = 4 << 20;

/// The elements' bytes, as they lie in the chunk (big-endian ones still are). Nothing is read before the first read.
///
/// A chunk of up to kWholeChunk is decoded by the first read, and kept (held_bytes); several threads may read it in any
/// order. A larger one is read in bounded memory: deflated ones best front to back, see turn(), where a checksum of
/// deflate is only compared at the end; shuffled ones of those take a pass over the whole chunk before. A fletcher32
/// checksum is compared before the first byte is given out.
///
/// \throws Error kCorruption (kind crc_mismatch, bad_header, truncated)  from read_at, naming the chunk: a checksum
///   differs; it is not a zlib stream; more or fewer bytes come out; bytes follow it.
/// \throws Error kUnsupported  from read_at: a larger one with shuffled elements of more than 64 bytes.
/// Ownership: `filters` are copied. Threads: safe. Memory: a larger one takes up to 40 MiB; while a small one is
/// decoded three times its size.
std::shared_ptr<const RandomReader> decoded_chunk(const FilteredChunk& chunk);

/// `bytes` bytes of the element `fill` again and again; of zeros where it is empty.
std::shared_ptr<const RandomReader> constant_view(std::span<const std::byte> fill, std::int64_t bytes,
                                                  std::string name);

}  // namespace shard::hdf5
