/// \file
/// Operand: reads ranges of a leaf's elements, and keeps the last one. Inside libshard/compute only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "libshard/compute/values.h"
#include "libshard/core/error.h"
#include "libshard/exec/buffer_pool.h"
#include "libshard/exec/tensor_reader.h"

namespace shard {

/// The last range is kept, so that overlapping reads do not read bytes again. Threads: one per object.
class Operand {
 public:
  /// \param memory_bytes  used only if the tensor is stored in a permuted order
  Operand(const Reader& reader, std::uint32_t tensor, std::int64_t memory_bytes = 4 << 20);
  Operand(Readers readers, const Leaf& leaf) : Operand(*readers[leaf.reader], leaf.tensor) {}

  const Tensor& tensor() const { return tensor_; }
  DType dtype() const { return tensor_.dtype; }
  std::int64_t elements() const { return elements_; }
  /// Reads elements [begin, end) as they are stored. Valid until the next call. \throws Error as the reader
  std::span<const std::byte> read(std::int64_t begin, std::int64_t end);
  /// Reads elements from `begin` on into `out`, as float32.
  void read_floats(std::int64_t begin, std::span<float> out);
  /// kCorruption about its content.
  Error wrong(const std::string& what, FindingKind kind) const;

 private:
  const Catalog& catalog_;
  const Tensor& tensor_;
  std::int64_t elements_, element_bytes_;
  Progress progress_;
  BufferPool pool_;
  TensorReader reader_;
  std::int64_t begin_ = 0, end_ = 0;  ///< Elements in kept_.
  std::vector<std::byte> kept_;
};

}  // namespace shard
