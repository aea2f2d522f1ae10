/// \file
/// Decoders of the codecs, each with its place in the input. Inside formats/parts/decoded_view only.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string_view>

#include "formats/parts/decoded_view/decoded_view.h"
#include "libshard/core/error.h"

namespace shard::decoded_view {

/// An error of the compressed bytes: kind bad_header unless it is told another.
Error damaged(const Compressed& from, std::string_view what);

/// Reads compressed bytes front to back. Threads: one at a time.
class Decoder {
 public:
  virtual ~Decoder() = default;
  /// Fills the front of `out`; 0 only at the end of the input. \pre out is not empty
  /// \throws Error  see decompressed()
  virtual std::size_t produce(std::span<std::byte> out) = 0;
  /// A decoder that goes on from here, or null where none can begin.
  virtual std::unique_ptr<Decoder> copy() const = 0;
  virtual std::size_t memory_bytes() const = 0;
};

/// Ownership: `from` must outlive the decoder and its copies.
std::unique_ptr<Decoder> make_decoder(const Compressed& from);

}  // namespace shard::decoded_view
