/// \file
/// Whether tensors of an open source hold the same elements.
#pragma once

#include <cstdint>
#include <string>

#include "libshard/catalog/selection.h"
#include "libshard/checkpoint/reader.h"
#include "libshard/compare/block_reader.h"
#include "libshard/core/hash_table.h"

namespace shard {

/// Tensors of one dtype and shape are compared byte by byte; others differ, and aliases of one tensor are equal.
/// Threads: one. Ownership: the reader must outlive it.
class EqualTensors {
 public:
  /// `memory_bytes`: of buffers for reading.
  EqualTensors(Reader& reader, std::int64_t memory_bytes)
      : reader_(reader), pool_a_(memory_bytes / 2), pool_b_(memory_bytes / 2) {}

  /// Cost: reads both up to the first block that differs.
  bool are_equal(const SelectedTensor& a, const SelectedTensor& b);

  /// False: they differ. Cost: however many pairs are asked about, each tensor's first block is read once, and the
  /// whole once more if another tensor begins like it.
  bool may_be_equal(const SelectedTensor& a, const SelectedTensor& b);

 private:
  /// XXH3-128 of elements; empty until it is needed.
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
  HashMap<std::uint32_t, Prints> prints_;  ///< By index in the catalog.
};

}  // namespace shard
