/// \file TensorReader: reads any range of a tensor's elements in row-major order, regardless of its chunks. digest,
///   diff and cat use it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <stop_token>

#include "libshard/core/dtype.h"
#include "libshard/exec/buffer_pool.h"
#include "libshard/exec/execute.h"

namespace shard {

/// A tensor in a different order than row-major (for example transposed) is read in panels: as many of its rows as fit
/// in memory, read in the order in which they are stored.
///
/// If a tensor needs several panels, and is compressed or would need very many reads, it is first copied to a temporary
/// file. Without a file, it is decoded once per panel. For a tensor in many compressed chunks, panels end where chunks
/// end. All threads read such a panel, and one thread reads each chunk.
/// \pre the tensor is located and not damaged. Threads: one reader per thread.
class TensorReader {
 public:
  /// \param findings  receives an error for a storage that was read completely and does not match its checksum, see
  ///   SourceChecks.
  /// \param pool  the memory for panels. Readers that share a pool wait for one another, so a thread that reads two
  ///   tensors at once needs two pools. Null: the reader's own, of 64 MiB.
  /// \param threads  the number of threads that fill a panel. Ownership: all arguments must outlive this.
  TensorReader(const Catalog& catalog, const Reader& reader, std::uint32_t tensor, Progress& progress,
               Findings& findings = throwing_findings(), BufferPool* pool = nullptr, int threads = 1);
  ~TensorReader();
  /// Fills `out` with elements [begin, end), packed and little-endian as stored. If elements are smaller than a byte,
  /// begin and end must be on byte boundaries. \pre out.size() is the size of the elements.
  /// \throws Error kResource  the memory is so small that a compressed tensor would be decoded more than kMostPasses
  ///   times, and a temporary file has no room for it (see ScratchTensor).
  void read(std::int64_t begin, std::int64_t end, std::span<std::byte> out);
  /// A number of elements near `bytes` that can be read efficiently: whole rows of the split dimensions if they fit.
  std::int64_t block_elements(std::int64_t bytes) const;

  static constexpr std::int64_t kMostPasses = 8;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// The first of `elements` elements in which two tensors of one dtype differ, rounded down to a byte if elements are
/// smaller. Memory: two blocks of 1 MiB.
/// \throws Error  as TensorReader::read; as check_stop
std::optional<std::int64_t> first_difference(TensorReader& a, TensorReader& b, std::int64_t elements, DType dtype,
                                             const std::stop_token& stop = {});

}  // namespace shard
