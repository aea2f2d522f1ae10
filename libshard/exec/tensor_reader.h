/// \file
/// Reads any range of a tensor's elements in row-major order, whatever its chunks: for digest, diff and cat.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "libshard/exec/execute.h"

namespace shard {

/// \pre the tensor is located and not damaged. Threads: one reader per thread.
class TensorReader {
 public:
  /// `findings` is told of a storage that was read whole and does not match its checksum, see SourceChecks.
  TensorReader(const Catalog& catalog, const Reader& reader, std::uint32_t tensor, Progress& progress,
               Findings& findings = throwing_findings());
  ~TensorReader();
  /// Fills `out` with elements [begin, end), packed little-endian as stored. Sub-byte elements: begin and end must fall
  /// on bytes. \pre out.size() is their bytes.
  void read(std::int64_t begin, std::int64_t end, std::span<std::byte> out);
  /// A number of elements near `bytes` that reads well: whole rows of the cut dimensions where they fit.
  std::int64_t block_elements(std::int64_t bytes) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace shard
