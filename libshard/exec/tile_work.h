/// \file
/// What the workers of one run share. Inside libshard/exec only.
#pragma once

#include <span>

#include "libshard/core/error.h"
#include "libshard/exec/clones.h"
#include "libshard/exec/execute.h"

namespace shard {

struct TileWork {
  const Plan& plan;
  const Catalog& source;
  const Reader& reader;
  const Catalog& target;
  std::span<FileWriter* const> files;
  const ExecuteOptions& options;
  Progress& progress;
  StorageChecksums* checksums;  ///< Null when not wanted.
  SourceChecks& source_checks;
  const Clones& clones;
  BufferPool& pool;
  std::int64_t memory_bytes;  ///< Of the workers' own buffers.
};

/// Names the tensor of `unit` in an error of what is read.
inline void name_tensor(Error& error, const TileWork& work, const Unit& unit) {
  const bool is_input = error.code() == ErrorCode::kCorruption || error.code() == ErrorCode::kNotFound;
  if (is_input && unit.tensor != kNoIndex) error.of_tensor(work.target.tensors[unit.tensor].name);
}

}  // namespace shard
