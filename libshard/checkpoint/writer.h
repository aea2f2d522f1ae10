/// \file
/// Writer: how a format puts a target catalog into files.
///
/// Every file has one owner among the ranks of a job (job/file_owners.h). The owner writes all of the file that is not
/// tensors' elements: begin_file before them, the frames of storages, and finish_file after them.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

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

/// The bytes right around storages, such as a zip's local headers. Small storages are written together with them.
/// Threads: one; each makes its own by Writer::frames.
class StorageFrames {
 public:
  virtual ~StorageFrames() = default;
  /// Appends what ends where the storage begins.
  virtual void append_before(std::uint32_t storage, std::string& out) = 0;
  /// Appends what begins where the storage ends.
  virtual void append_after(std::uint32_t storage, std::uint32_t crc32, std::string& out) = 0;
};

/// Puts a target catalog into files of one format. Made for one target. On every rank of a job there is one.
/// Threads: begin_file and finish_file may be called at once for different files; frames by any.
class Writer {
 public:
  virtual ~Writer() = default;
  /// Fixes every file's path and size and every storage's offset in `target`; adds files of its own (index, metadata).
  /// Pure: writes nothing. Called once, before the others, which are given the same target.
  /// \throws Error kUnsupported  something that the format cannot hold, by name.
  virtual void place(Catalog& target) = 0;
  /// Whether frames and what finish_file writes hold CRC-32s of storages.
  virtual bool needs_checksums() const { return false; }
  /// Writes what is known before the elements, such as headers. Called once, before any element of the file is written.
  virtual void begin_file(const Catalog& /*target*/, std::uint32_t /*file*/, FileWriter& /*to*/) {}
  /// The frames of the target's storages; null if storages have none. Ownership: must not outlive the target or the
  /// Writer.
  virtual std::unique_ptr<StorageFrames> frames(const Catalog& /*target*/) const { return nullptr; }
  /// Writes what is left, such as directories and metadata. Called once, when all else of the file was written.
  virtual void finish_file(const Catalog& /*target*/, std::uint32_t /*file*/, const Checksums& /*checksums*/,
                           FileWriter& /*to*/) {}
  /// Whether DST is a folder or one file, given the placed target.
  virtual bool is_folder() const = 0;
};

}  // namespace shard
