/// \file BlockReader: reads a selected tensor's elements block by block, in the dtype that the selection converts them
///   to.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "libshard/catalog/selection/selection.h"
#include "libshard/exec/tensor_reader.h"

namespace shard {

inline constexpr std::int64_t kBlockBytes = 1 << 20;  ///< Tensors are read in blocks of this size.

/// Threads: each thread needs its own.
class BlockReader {
 public:
  /// \param pool, threads  see TensorReader.
  BlockReader(const Catalog& catalog, const Reader& reader, const SelectedTensor& tensor, Progress& progress,
              BufferPool& pool, int threads);
  std::int64_t elements() const { return elements_; }
  /// The number of elements in a block of about `bytes`, at least one. Blocks end on whole bytes.
  std::int64_t block_elements(std::int64_t bytes) const;
  /// Reads elements [begin, end), packed. The view is valid until the next call.
  std::span<const std::byte> read(std::int64_t begin, std::int64_t end);

 private:
  TensorReader reader_;
  DType from_, to_;
  std::int64_t elements_;
  std::vector<std::byte> raw_, converted_;
};

}  // namespace shard
