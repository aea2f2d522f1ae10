/// \file EqualTensors: finds out whether tensors of an open source have the same elements.
#pragma once

#include <cstdint>
#include <string>

#include "libshard/catalog/selection/selection.h"
#include "libshard/checkpoint/reader.h"
#include "libshard/compare/pass.h"
#include "libshard/core/hash_table.h"

namespace shard {

/// Compares tensors byte by byte if they have one dtype and shape. Tensors of different dtypes or shapes differ, and
/// aliases of one tensor are equal. Threads: one. Ownership: the reader must outlive it.
class EqualTensors {
 public:
  /// \param memory_bytes  the size of all buffers for reading.
  EqualTensors(Reader& reader, std::int64_t memory_bytes)
      : reader_(reader), pool_a_(memory_bytes / 2), pool_b_(memory_bytes / 2) {}

  /// Compares two tensors exactly. Cost: reads both up to the first block that differs.
  bool are_equal(const SelectedTensor& a, const SelectedTensor& b);

  /// Compares prints of two tensors. If the result is false, they differ. Cost: regardless of the number of pairs, each
  /// tensor's first block is read once. A whole tensor is read again if another begins with the same block.
  bool may_be_equal(const SelectedTensor& a, const SelectedTensor& b);

 private:
  /// XXH3-128 hashes of elements. Empty until they are needed.
  struct Prints {
    std::string first_block, whole;
  };
  BlockReader open(const SelectedTensor& tensor, BufferPool& pool);
  const std::string& first_block(const SelectedTensor& tensor);
  const std::string& whole(const SelectedTensor& tensor);
  std::string hash_of(const SelectedTensor& tensor, bool first_block);

  Reader& reader_;
  Progress progress_;
  BufferPool pool_a_, pool_b_;
  HashMap<std::uint32_t, Prints> prints_;  ///< Key: the tensor's index in the catalog.
};

}  // namespace shard
