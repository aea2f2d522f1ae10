/// \file Writer: stores a target catalog in the files of one format.
///
/// Every file has one owner among the ranks of a job (job/topology.h). The owner writes everything in the file
/// except the elements of tensors: begin_file before them, the frames around storages, and finish_file after them.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "libshard/catalog/catalog.h"
#include "libshard/io/file_writer.h"

namespace shard {

/// The CRC-32 of each target storage, combined from the CRC-32s of pieces that workers computed.
class Checksums {
 public:
  virtual ~Checksums() = default;
  /// CRC-32 (IEEE) of the storage's bytes. \pre every byte of it was recorded.
  virtual std::uint32_t crc32_of(std::uint32_t storage) const = 0;
};

/// The bytes directly before and after storages, such as a zip file's local headers. Small storages are written
/// together with their frames. Threads: one. Each thread calls Writer::frames for its own.
class StorageFrames {
 public:
  virtual ~StorageFrames() = default;
  /// Appends the bytes that end where the storage begins.
  virtual void append_before(std::uint32_t storage, std::string& out) = 0;
  /// Appends the bytes that begin where the storage ends.
  virtual void append_after(std::uint32_t storage, std::uint32_t crc32, std::string& out) = 0;
};

/// Writes one target catalog in one format. Every rank of a job has its own Writer. Threads: begin_file and finish_file
/// may run at once for different files. Any thread may call frames.
class Writer {
 public:
  virtual ~Writer() = default;
  /// Assigns every file's path and size and every storage's offset in `target`, and adds the format's own files (index,
  /// metadata). Pure: writes nothing. Called once, before the other functions, which get the same target.
  /// \throws Error kUnsupported  the format cannot store an item; the message names it.
  virtual void place(Catalog& target) = 0;
  /// Whether frames or finish_file write CRC-32s of storages.
  virtual bool needs_checksums() const { return false; }
  /// Writes everything that is known before the elements, such as headers. Called once, before any element of the file
  /// is written.
  virtual void begin_file(const Catalog& /*target*/, std::uint32_t /*file*/, FileWriter& /*to*/) {}
  /// The frames of the target's storages, or null if they have none. Must not outlive the target or the Writer.
  virtual std::unique_ptr<StorageFrames> frames(const Catalog& /*target*/) const { return nullptr; }
  /// Writes the rest of the file, such as directories and metadata. Called once, when all else is written.
  virtual void finish_file(const Catalog& /*target*/, std::uint32_t /*file*/, const Checksums& /*checksums*/,
                           FileWriter& /*to*/) {}
  /// Whether the output is a folder rather than one file, given the placed target.
  virtual bool is_folder() const = 0;
};

}  // namespace shard
