/// \file
/// Reads any range of a tensor's elements in row-major order, whatever its chunks: for digest, diff and cat.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "libshard/exec/buffer_pool.h"
#include "libshard/exec/execute.h"

namespace shard {

/// A tensor that is stored in another order than row-major (transposed, say) is read in panels: as many of its rows as
/// the memory holds, read in the order in which they are stored. One of several panels is copied to a temporary file
/// first where it is compressed, or would take very many reads; without a file it is decoded once for each panel.
/// One in many compressed chunks is read in panels that end where chunks end, by all threads, each chunk by one.
/// \pre the tensor is located and not damaged. Threads: one reader per thread.
class TensorReader {
 public:
  /// `findings` is told of a storage that was read whole and does not match its checksum, see SourceChecks.
  /// `pool` has the memory for panels; readers that share one wait for one another, so that a thread which reads two
  /// tensors at once needs two pools. Null: 64 MiB of its own. `threads` fill a panel.
  /// Ownership: all must outlive this.
  TensorReader(const Catalog& catalog, const Reader& reader, std::uint32_t tensor, Progress& progress,
               Findings& findings = throwing_findings(), BufferPool* pool = nullptr, int threads = 1);
  ~TensorReader();
  /// Fills `out` with elements [begin, end), packed little-endian as stored. Sub-byte elements: begin and end must fall
  /// on bytes. \pre out.size() is their bytes.
  /// \throws Error kResource  the memory is so small that a compressed tensor would be decoded more than kMostPasses
  /// times, and no temporary file takes it (see ScratchTensor).
  void read(std::int64_t begin, std::int64_t end, std::span<std::byte> out);
  /// A number of elements near `bytes` that reads well: whole rows of the cut dimensions where they fit.
  std::int64_t block_elements(std::int64_t bytes) const;

  static constexpr std::int64_t kMostPasses = 8;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace shard
