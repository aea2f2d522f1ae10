/// \file
/// Views of a file's bytes as plain little-endian elements: compression, byte order, conj and neg bits undone on the way.
///
/// A view is a RandomReader, so that planner and executor need to know nothing of it. Views stack: the big-endian
/// elements of a deflated record are `as_elements(decompressed(...))`.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "libshard/core/dtype.h"
#include "libshard/io/file_system.h"

namespace shard::decode {

enum class Codec { kDeflate, kZstd };

/// Compressed bytes of one file.
struct Compressed {
  std::shared_ptr<const RandomReader> file;
  std::int64_t offset = 0;         ///< Of the first compressed byte in the file.
  std::int64_t stored_bytes = 0;   ///< Compressed.
  std::int64_t bytes = 0;          ///< What must come out, exactly.
  Codec codec = Codec::kDeflate;
  std::string shown;               ///< The record or item, for messages.
};

/// The decompressed bytes. Reads that go forward stream through one decoder; a read behind its window begins again at
/// the nearest point that the decoder can begin at.
///
/// \throws Error kCorruption (kind bad_header)  from read_at: not such a stream, or more or fewer bytes come out.
/// Threads: safe; readers take turns. Memory: a few MiB, whatever the stream says (zstd windows above 128 MiB are
/// kUnsupported). Cost: linear for reads in order.
std::shared_ptr<const RandomReader> decompressed(Compressed from);

/// How stored elements differ from plain ones.
struct ElementCode {
  int swap_bytes = 1;   ///< Bytes are reversed in groups of this many: 2, 4, 8 (complex: half an element); 1: not.
  DType dtype{};        ///< Of the view; conj and neg need it.
  bool conj = false;    ///< Imaginary parts are stored with the other sign.
  bool neg = false;     ///< Elements are stored with the other sign.
};

/// Bytes [offset, offset + bytes) of `file`, as plain elements; byte 0 of the view is that at `offset`. Reads may begin
/// and end anywhere.
/// \throws Error kUnsupported  conj or neg of a dtype that has no sign.
/// Threads: safe. Cost: one copy.
std::shared_ptr<const RandomReader> as_elements(std::shared_ptr<const RandomReader> file, std::int64_t offset,
                                                std::int64_t bytes, const ElementCode& code);

}  // namespace shard::decode
