/// \file
/// Views of a file's bytes as plain little-endian elements: compression, byte order, conj and neg bits are undone.
///
/// A view is a RandomReader, so the planner and executor treat it like any file. Views stack: the big-endian
/// elements of a deflated record are `as_elements(decompressed(...))`.
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

/// Compressed bytes of one file.
struct Compressed {
  std::shared_ptr<const RandomReader> file;
  std::int64_t offset = 0;        ///< Where the compressed bytes begin in the file.
  std::int64_t stored_bytes = 0;  ///< Compressed.
  std::int64_t bytes = 0;         ///< After decompression, exactly.
  Codec codec = Codec::kDeflate;
  std::string shown;  ///< The record or item, for messages.
  /// Called with the number of bytes after each step, also for bytes that a read backwards decodes again; may throw.
  /// May be empty.
  std::function<void(std::int64_t bytes)> on_decoded = {};
};

/// The decompressed bytes. Reads that go forward stream through one decoder. A read behind its window begins again: for
/// deflate at the nearest of up to 32 copies that were made of the decoder on the way, for zstd at a frame's begin.
///
/// \throws Error kCorruption (kind bad_header)  from read_at: not such a stream, or more or fewer bytes come out, or
///   bytes follow it. (kind out_of_bounds)  reads in another order than that of the bytes had it decoded 16 times, and
///   256 MiB. kUnsupported  a zstd window above 128 MiB.
/// \throws Error kResource  the decoder gets no memory.
/// Threads: safe; readers take turns, those of long ranges by turn(). Memory: up to 8 MiB of output, 90 KiB for each
/// copy, and what zstd's window takes until the end is decoded.
/// Cost: linear for reads in order; nothing is read before the first read.
std::shared_ptr<const RandomReader> decompressed(Compressed from);

/// The same bytes for readers that go forward from several places in turns, as from the planes of shuffled elements:
/// view i has a decoder that stands at begins[i]. One pass over all of the stream sets them there, and finds what is
/// wrong with it. \pre `begins` rise and lie within from.bytes; not kZstd.
/// \throws Error  as read_at of `decompressed`
/// Memory: 36 MiB for up to 64 views.
std::vector<std::shared_ptr<const RandomReader>> decompressed_at(Compressed from, std::span<const std::int64_t> begins);

/// Decompresses all of it once, front to back, for streams of unknown decompressed size: `from.bytes` is not
/// looked at. `each` gets the bytes in blocks, valid during the call; it may throw to end it.
/// \throws Error  as `decompressed`; kind truncated where the stream is cut short.
/// Memory: 320 KiB, and zstd's window.
void decompress_all(const Compressed& from, const std::function<void(std::span<const std::byte>)>& each);

/// How stored elements differ from plain ones.
struct ElementCode {
  int swap_bytes = 1;  ///< Bytes are reversed in groups of this many: 2, 4, 8 (complex: half an element); 1: not.
  DType dtype{};       ///< The elements' dtype, which conj and neg need.
  bool conj = false;   ///< Imaginary parts are stored with the other sign.
  bool neg = false;    ///< Elements are stored with the other sign.

  bool is_plain() const { return swap_bytes == 1 && !conj && !neg; }  ///< The stored bytes are the elements.
  friend bool operator==(const ElementCode&, const ElementCode&) = default;
};

/// The groups of bytes that a change of byte order reverses in elements of `dtype`: ElementCode::swap_bytes.
int swapped_bytes(DType dtype);

/// Bytes [offset, offset + bytes) of `file`, as plain elements; byte 0 of the view is that at `offset`. Reads may begin
/// and end anywhere.
/// \throws Error kUnsupported  conj or neg of a dtype that has no sign.
/// Threads: safe. Cost: one copy.
std::shared_ptr<const RandomReader> as_elements(std::shared_ptr<const RandomReader> file, std::int64_t offset,
                                                std::int64_t bytes, const ElementCode& code);

/// \throws Error kCorruption (kind out_of_bounds)  a read of `count` bytes at `offset` leaves a view of `bytes`.
void check_within(std::int64_t offset, std::size_t count, std::int64_t bytes, const std::string& file);

}  // namespace shard::decoded_view
