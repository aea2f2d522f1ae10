/// \file Views of a file's bytes as plain little-endian elements. They undo compression, byte order, conj and neg bits.
///
/// A view is a RandomReader, so the planner and the executor treat it like any file. Views can be stacked: the
/// big-endian elements of a deflated record are `as_elements(decompressed(...))`.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "libshard/core/dtype.h"
#include "libshard/io/source_store.h"

namespace shard::decoded_view {

/// kZlib: deflate with a header and an Adler-32. kLzf: see lzf_stream.h.
enum class Codec { kDeflate, kZlib, kZstd, kLzf };

/// A compressed range of one file.
struct Compressed {
  std::shared_ptr<const RandomReader> file;
  std::int64_t offset = 0;        ///< The offset of the compressed bytes in the file.
  std::int64_t stored_bytes = 0;  ///< The number of compressed bytes.
  std::int64_t bytes = 0;         ///< The exact number of bytes after decompression.
  Codec codec = Codec::kDeflate;
  std::string shown;  ///< The record or item, for messages.
  /// Called with the number of bytes after each step, including bytes that are decoded again after a backward read. May
  /// throw. May be empty.
  std::function<void(std::int64_t bytes)> on_decoded = {};
};

/// The decompressed bytes. Forward reads stream through one decoder. A read before its window restarts the decoder: for
/// deflate at the nearest of up to 32 copies of its earlier states, for zstd at the start of a frame.
///
/// \throws Error kCorruption (kind bad_header)  from read_at: the bytes are not such a stream, it decodes to more or
///   fewer bytes, or bytes follow it. (kind truncated)  the stream is truncated. (kind out_of_bounds)  reads out of
///   order made the decoder process 16 times the stream plus 256 MiB. kUnsupported  a zstd window above 128 MiB.
/// \throws Error kResource  the decoder cannot allocate memory.
/// Threads: safe; readers take turns, for long ranges by turn(). Memory: up to 8 MiB of output, 90 KiB for each copy,
/// and zstd's window until the end is decoded.
/// Cost: linear for reads in order; reads no byte before the first read_at.
std::shared_ptr<const RandomReader> decompressed(Compressed from);

/// Several views of the same bytes, for readers that alternate between several positions and go forward at each, such
/// as the planes of shuffled elements. View i has a decoder at begins[i]. One pass over the whole stream prepares the
/// decoders and detects damage. \pre `begins` is ascending and within from.bytes; not kZstd.
/// \throws Error  as read_at of `decompressed`
/// Memory: 36 MiB for up to 64 views.
std::vector<std::shared_ptr<const RandomReader>> decompressed_at(Compressed from, std::span<const std::int64_t> begins);

/// Decompresses the whole range once, front to back, for streams of unknown decompressed size: `from.bytes` is ignored.
/// `each` receives the bytes in blocks, valid during the call; it may throw to stop.
/// \throws Error  as `decompressed`
/// Memory: 320 KiB, and zstd's window.
void decompress_all(const Compressed& from, const std::function<void(std::span<const std::byte>)>& each);

/// How stored elements differ from plain ones.
struct ElementCode {
  /// The size of the groups in which bytes are reversed: 2, 4, 8 (complex: half an element); 1 if they are not.
  int swap_bytes = 1;
  DType dtype{};      ///< The elements' dtype, required for conj and neg.
  bool conj = false;  ///< Imaginary parts are stored with the opposite sign.
  bool neg = false;   ///< Elements are stored with the opposite sign.

  /// True if the stored bytes are the plain elements.
  bool is_plain() const { return swap_bytes == 1 && !conj && !neg; }
  friend bool operator==(const ElementCode&, const ElementCode&) = default;
};

/// The size of the groups of bytes that a change of byte order reverses in elements of `dtype`:
/// ElementCode::swap_bytes.
int swapped_bytes(DType dtype);

/// Bytes [offset, offset + bytes) of `file`, as plain elements. Byte 0 of the view corresponds to `offset`. Reads may
/// start and end inside an element.
/// \throws Error kUnsupported  conj or neg of a dtype without a sign.
/// Threads: safe. Cost: one copy.
std::shared_ptr<const RandomReader> as_elements(std::shared_ptr<const RandomReader> file, std::int64_t offset,
                                                std::int64_t bytes, const ElementCode& code);

/// \throws Error kCorruption (kind out_of_bounds)  a read of `count` bytes at `offset` extends past a view of `bytes`.
void check_within(std::int64_t offset, std::size_t count, std::int64_t bytes, const std::string& file);

}  // namespace shard::decoded_view
