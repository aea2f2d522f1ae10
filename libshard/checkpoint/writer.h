/// \file
/// Writer: how a format puts a target catalog into files.
#pragma once

#include <cstdint>
#include <span>

#include "libshard/catalog/catalog.h"
#include "libshard/io/file_writer.h"

namespace shard {

/// CRC-32 of each target storage, joined from pieces that workers made.
class Checksums {
 public:
  virtual ~Checksums() = default;
  /// CRC-32 (IEEE) of the storage's bytes. \pre every byte of it was recorded.
  virtual std::uint32_t crc32_of(std::uint32_t storage) const = 0;
};

/// Puts a target catalog into files of one format. Made for one target.
class Writer {
 public:
  virtual ~Writer() = default;
  /// Fixes every file's path and size and every storage's offset in `target`; adds files of its own (index, metadata).
  /// Pure: writes nothing. Called once, before the others.
  /// \throws Error kUnsupported  something that the format cannot hold, by name.
  virtual void place(Catalog& target) = 0;
  virtual bool needs_checksums() const { return false; }
  /// Writes all that is not tensors' elements: headers, directories, metadata. Called after every element was written.
  /// `files[i]` is the open file of target.files[i].
  virtual void finish(const Catalog& target, const Checksums& checksums, std::span<FileWriter* const> files) = 0;
  /// Whether DST is a folder or one file, given the placed target.
  virtual bool is_folder() const = 0;
};

}  // namespace shard
