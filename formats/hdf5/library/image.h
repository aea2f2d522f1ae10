/// \file
/// Builds a new HDF5 file without its elements. libhdf5 makes it in memory, so that all offsets are known before a byte
/// is written. Inside formats/hdf5 only.
///
///     0        superblock (48 bytes)
///     48       elements of datasets, at offsets that the caller chooses
///     begin    everything else that libhdf5 writes, to the end of the file
///
/// A virtual file driver of libhdf5 assigns the offsets and keeps all writes from `begin` on; libhdf5 cannot write
/// anything else. Memory: that of the metadata, regardless of the size of the file.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "formats/hdf5/described.h"
#include "formats/hdf5/library/handle.h"

namespace shard::hdf5 {

/// The first possible offset of elements.
inline constexpr std::int64_t kSuperblockBytes = 48;

/// The file while libhdf5 has it open, and the bytes that libhdf5 wrote. Threads: one, which must hold library_lock();
/// extents() needs no lock.
class Image {
 public:
  /// Creates the file. \pre metadata_begin >= kSuperblockBytes \throws LibraryError
  explicit Image(std::int64_t metadata_begin);
  ~Image();

  hid_t file() const { return file_.get(); }
  /// Sets the offset of the next dataset's elements. \pre kSuperblockBytes <= offset; they end before the metadata
  void place_next(std::int64_t offset);
  /// Flushes and closes the file. \pre every handle into it is closed \throws LibraryError
  void close();

  /// The size of the whole file. \pre close() was called
  std::int64_t bytes() const;
  /// Calls `each` for all written bytes, piece by piece. \pre close() was called
  void visit(const std::function<void(std::int64_t offset, std::span<const std::byte> bytes)>& each) const;

 private:
  class Blocks;
  struct Driver;

  std::unique_ptr<Blocks> blocks_;
  FileHandle file_;
};

// Datatypes, dataspaces and attributes of libhdf5, built from plain descriptions.
//
// Threads: the caller must hold library_lock(). All functions may throw LibraryError.

/// Properties of `kind` for objects without times of access and change.
PropertiesHandle without_times(hid_t kind);
/// Properties of `kind` for links or attributes whose names are UTF-8.
PropertiesHandle with_utf8_names(hid_t kind);
/// \pre is_writable(type)
TypeHandle make_type(const Type& type);
SpaceHandle make_space(const Space& space);

/// Adds an attribute to a group or dataset. \pre `content` has all elements (data or strings), unless its space is null
void add_attribute(hid_t object, const std::string& name, const Content& content);
/// Writes all elements of a dataset. \pre as add_attribute; `dataset` has the type and space of `content`
void write_elements(hid_t dataset, const Content& content);

}  // namespace shard::hdf5
