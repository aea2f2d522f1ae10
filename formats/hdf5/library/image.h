/// \file
/// A new HDF5 file without its elements: libhdf5 makes it in memory, so that its places are known before a byte is
/// written. Inside formats/hdf5 only.
///
///     0        superblock (48 bytes)
///     48       elements of datasets, where their owner says
///     begin    everything else that libhdf5 writes, to the end of the file
///
/// A virtual file driver of libhdf5 gives out the places and keeps what is written behind `begin`; nothing else can be
/// written. Memory: that of the metadata, whatever the size of the file.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>

#include "formats/hdf5/library/handle.h"

namespace shard::hdf5 {

/// Elements may begin here.
inline constexpr std::int64_t kSuperblockBytes = 48;

/// The file while libhdf5 has it open, and what it wrote. Threads: one, which holds library_lock(); extents() needs no
/// lock.
class Image {
 public:
  /// Creates the file. \pre metadata_begin >= kSuperblockBytes \throws LibraryError
  explicit Image(std::int64_t metadata_begin);
  ~Image();

  hid_t file() const { return file_.get(); }
  /// The elements of the next dataset that is made lie at `offset`. \pre kSuperblockBytes <= offset; they end before
  /// the metadata
  void place_next(std::int64_t offset);
  /// Writes all out and closes the file. \pre every handle into it is closed \throws LibraryError
  void close();

  /// The size of the whole file. \pre close()
  std::int64_t bytes() const;
  /// What was written, piece by piece. \pre close()
  void visit(const std::function<void(std::int64_t offset, std::span<const std::byte> bytes)>& each) const;

 private:
  class Blocks;
  struct Driver;

  std::unique_ptr<Blocks> blocks_;
  FileHandle file_;
};

}  // namespace shard::hdf5
