/// \file
/// A new file that takes positioned writes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "libshard/core/error.h"

namespace shard {

/// What read_back throws where there are no such bytes.
inline Error cannot_read_back() { return {ErrorCode::kResource, "cannot read back what was written"}; }

/// Threads: write_at may be called by several at once on disjoint ranges.
/// \throws Error kResource  from every member: the file cannot be written.
class FileWriter {
 public:
  virtual ~FileWriter() = default;  ///< Releases; does not sync.
  virtual void write_at(std::int64_t offset_bytes, std::span<const std::byte> data) = 0;
  /// Where the bytes shall lie in this process's memory, to be filled instead of a write; they then count as written.
  /// Empty where they do not lie there. Ownership: a view, as long as this. Threads: as write_at.
  virtual std::span<std::byte> in_memory(std::int64_t /*offset_bytes*/, std::size_t /*bytes*/) { return {}; }
  /// Fills `out` with what lies there, from this run, another rank or an earlier run. Threads: as write_at.
  /// \throws Error kResource  here also: the file ends before, or this kind of file cannot be read back
  virtual void read_back(std::int64_t /*offset_bytes*/, std::span<std::byte> /*out*/) { throw cannot_read_back(); }
  /// Reserves space so that later writes cannot run out of it; falls back to setting the size where not supported.
  virtual void allocate(std::int64_t bytes) = 0;
  /// Says that sync will be called: what is written from now on may begin its way to the disk at once, so that sync
  /// waits for less. \pre no write is under way
  virtual void expect_sync() {}
  /// Forces data and metadata to disk. A failed sync must never be retried on the same file.
  virtual void sync() = 0;
  virtual void close() = 0;  ///< Explicit, may throw.
  /// The kernel's descriptor for reflinks, or -1.
  virtual int descriptor() const { return -1; }
};

}  // namespace shard
