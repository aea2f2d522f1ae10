/// \file Reads boxes of tensors into memory that the caller has, in one run over the source.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <stop_token>

#include "libshard/checkpoint/reader.h"
#include "libshard/core/box.h"
#include "libshard/core/dtype.h"

namespace shard {

/// A box of a tensor, and the memory for its elements.
struct WantedBox {
  std::uint32_t tensor = 0;       ///< Index in the reader's catalog.
  Box box;                        ///< Must be inside the tensor. May be empty.
  DType dtype{};                  ///< The dtype of the memory. If it is not the tensor's, elements are converted.
  std::span<std::byte> memory{};  ///< Receives the elements in row-major order.
};

struct ReadBoxesOptions {
  int threads = 1;
  std::int64_t max_memory_bytes = 64 << 20;  ///< For buffers. Bytes that need no change are read without a buffer.
  std::stop_token stop{};                    ///< A stop request ends the call with Error kInterrupted.
};

/// Fills the memory of every box. Several boxes may overlap in the source, but not in memory. After an error, the
/// content of the memory is undefined.
/// \pre the tensors are located, and not damaged
/// \returns the bytes that were read from files
/// \throws Error kInvalidArgument  a box is outside its tensor, or its memory has a different size
/// \throws Error kUnsupported      no conversion between the dtypes, or a box begins or ends inside a byte
/// \throws Error                   see execute
/// Threads: several calls may read one reader at once. Ownership: keeps no reference.
std::int64_t read_boxes(const Reader& reader, std::span<const WantedBox> wanted, const ReadBoxesOptions& options);

}  // namespace shard
