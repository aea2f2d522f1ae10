/// \file The data that the workers of one run share. Inside libshard/exec only.
#pragma once

#include <span>

#include "libshard/core/error.h"
#include "libshard/exec/clones.h"
#include "libshard/exec/execute.h"

namespace shard {

/// Ownership: refers to the arguments of `execute`. Threads: the members are safe to use by all workers.
struct TileWork {
  const Plan& plan;
  const Catalog& source;
  const Reader& reader;
  const Catalog& target;
  std::span<FileWriter* const> files;
  const ExecuteOptions& options;
  Progress& progress;
  StorageChecksums* checksums;  ///< Null if no checksums are needed.
  SourceChecks& source_checks;
  const Clones& clones;
  BufferPool& pool;
  std::int64_t memory_bytes;  ///< The total size of the workers' own buffers.
};

/// Adds the name of the tensor of `unit` to an error from reading.
inline void name_tensor(Error& error, const TileWork& work, const Unit& unit) {
  const bool is_input = error.code() == ErrorCode::kCorruption || error.code() == ErrorCode::kNotFound;
  if (is_input && unit.tensor != kNoIndex) error.of_tensor(work.target.tensors[unit.tensor].name);
}

}  // namespace shard
