/// \file
/// Shows the bytes of chunked datasets as plain elements: filters are undone while reading. Inside formats/hdf5 only.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "formats/hdf5/described.h"
#include "libshard/io/source_store.h"

namespace shard::hdf5 {

/// A stored chunk.
struct FilteredChunk {
  std::shared_ptr<const RandomReader> file;
  ChunkPlace place{};
  std::int64_t bytes = 0;  ///< The size of its elements: the whole chunk's shape, even at an edge.
  std::vector<Filter> filters{};
  std::string shown{};  ///< "chunk (3, 0) of dataset /w", for messages.
};

/// Chunks up to this size are decoded whole.
inline constexpr std::int64_t kWholeChunk = 4 << 20;

/// The elements' bytes in the chunk's order, with unchanged byte order. Nothing is read before the first read.
///
/// The first read decodes a chunk of up to kWholeChunk and keeps it (held_bytes); several threads may read it in any
/// order. A larger chunk is read in bounded memory. If it is deflated, reads should go front to back, see turn(), and
/// deflate's checksum is only compared at the end. If it is also shuffled, one pass over the whole chunk precedes the
/// first read. A fletcher32 checksum is compared before the first byte is returned.
///
/// \throws Error kCorruption (kind crc_mismatch, bad_header, truncated)  from read_at, with the chunk's name: a
///   checksum differs; the bytes are not a zlib stream; it decodes to more or fewer bytes; bytes follow it.
/// \throws Error kUnsupported  from read_at: a larger chunk with shuffled elements of more than 64 bytes.
/// Threads: safe. Memory: up to 40 MiB for a larger chunk; three times its size while a small chunk is decoded.
std::shared_ptr<const RandomReader> decoded_chunk(const FilteredChunk& chunk);

/// `bytes` bytes that repeat the element `fill`; zeros if `fill` is empty.
std::shared_ptr<const RandomReader> constant_view(std::span<const std::byte> fill, std::int64_t bytes,
                                                  std::string name);

/// Reads a chunk that is too large to be decoded whole, in bounded memory, see decoded_chunk. A compressed chunk
/// streams through one decoder. A compressed and shuffled one streams through one decoder for each byte of an element,
/// and is decoded once before that to set them up. A checksum is compared in one pass before the first byte. \throws
/// Error kUnsupported  from read_at: shuffled elements of more than 64 bytes. Memory: up to 40 MiB. Nothing is read
/// before the first read.
std::shared_ptr<const RandomReader> large_chunk(const FilteredChunk& chunk);

}  // namespace shard::hdf5
