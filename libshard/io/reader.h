/// \file
/// Reader and Writer: what a format is to the rest of libshard.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "libshard/catalog/catalog.h"
#include "libshard/io/file_system.h"
#include "libshard/io/output.h"

namespace shard {

/// An open source checkpoint. Its bytes are read by the executor, with positioned reads at the catalog's places.
class Reader {
 public:
  virtual ~Reader() = default;
  /// Metadata only, already checked. The reference stays valid as long as the reader.
  virtual const Catalog& catalog() const = 0;
  /// Makes sure that the storages of these tensors are located, in file order. Formats whose metadata holds all places
  /// do nothing. Not thread-safe.
  /// \throws Error kCorruption  what lies there contradicts the metadata.
  virtual void locate(std::span<const std::uint32_t> tensors) = 0;
  /// Makes sure that objects' values are there. Until then an object that costs I/O to learn (a bytes item of dcp) is
  /// one entry whose value is null; afterwards its leaves are entries of their own, and `root` holds them as they are.
  /// Indices of tensors do not change. Not thread-safe.
  /// \throws Error kCorruption, kUnsupported
  virtual void load_objects() {}
  /// The open file of that index. Threads: safe. Ownership: shared; at most a few hundred are kept open.
  virtual std::shared_ptr<const RandomReader> file(std::uint32_t index) const = 0;
  /// Where the plain little-endian elements of a located storage are read: its file, or for one that is not plain a
  /// view that decodes on the way. Storage::offset counts there. Threads and ownership: as `file`.
  virtual std::shared_ptr<const RandomReader> bytes_of(std::uint32_t storage) const {
    return file(catalog().storages[storage].file);
  }
};

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
