/// \file
/// A pass over the elements of many tensors by the threads of all ranks: its resources, each rank's share, and the
/// blocks in which a tensor is read.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "libshard/catalog/selection/selection.h"
#include "libshard/exec/tensor_reader.h"
#include "libshard/ranks/group.h"

namespace shard {

struct PassOptions {
  int threads = 1;
  std::int64_t max_memory_bytes = 64 << 20;  ///< The limit on buffers for reading.
};

/// The range [first, second) of tensors that this rank handles, given the tensors' sizes `bytes`. The ranges are
/// contiguous and have about equal bytes. Collective.
/// \throws Error kInvalidArgument  the ranks see different tensors
std::pair<std::size_t, std::size_t> own_share(Group& group, std::span<const std::int64_t> bytes);

inline constexpr std::int64_t kBlockBytes = 1 << 20;  ///< Tensors are read in blocks of this size.

/// Reads a selected tensor's elements block by block, in the dtype that the selection converts them to. Threads: each
/// thread needs its own.
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
