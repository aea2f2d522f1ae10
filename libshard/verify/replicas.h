/// \file
/// Replicas: chunks of one tensor with equal boxes, compared byte for byte. Inside libshard/verify only.
#pragma once

#include <cstdint>
#include <span>
#include <stop_token>
#include <vector>

#include "libshard/checkpoint/reader.h"
#include "libshard/core/findings.h"
#include "libshard/exec/execute.h"

namespace shard {

/// A chunk and the first of its box, which it should equal.
struct ReplicaPair {
  std::uint32_t tensor = 0, first = 0, other = 0;  ///< The chunks: indices into Catalog::chunks.
  std::int64_t bytes = 0;
};

/// All pairs of located chunks that do not lie at one place. Aliases and damaged tensors are left out.
std::vector<ReplicaPair> replica_pairs(const Catalog& catalog);

/// Compares pairs. Threads: any. Memory: the pools', and 2 MiB a call.
class ReplicaCompare {
 public:
  /// Ownership: all must outlive this.
  ReplicaCompare(const Reader& reader, std::span<const ReplicaPair> pairs, std::int64_t max_memory_bytes,
                 Progress& progress, Findings& findings, bool may_differ = false);
  /// Reports (replica_mismatch) pair `index` if its elements differ; warns if they may. \throws Error  they cannot be
  /// read
  void compare(std::size_t index, const std::stop_token& stop);

 private:
  void report(const ReplicaPair& pair, std::int64_t element) const;

  const Reader& reader_;
  std::span<const ReplicaPair> pairs_;
  Catalog catalog_;                     ///< Each chunk of a pair is a tensor of its own: pair i's are 2i and 2i + 1.
  BufferPool first_pool_, other_pool_;  ///< A thread that reads two tensors at once needs two.
  Progress& progress_;
  Findings& findings_;
  const bool may_differ_;
};

}  // namespace shard
