/// \file
/// Undoes HDF5's filters in memory: deflate, lzf, shuffle, fletcher32. Pure. Inside formats/hdf5 only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "formats/hdf5/described.h"

namespace shard::hdf5 {

/// Memory that is not zeroed when it is allocated.
class Bytes {
 public:
  Bytes() = default;
  explicit Bytes(std::size_t size) : data_(std::make_unique_for_overwrite<std::byte[]>(size)), size_(size) {}
  std::span<std::byte> span() const { return {data_.get(), size_}; }
  std::size_t size() const { return size_; }
  void shrink(std::size_t size) { size_ = size; }  ///< \pre `size` is not larger than the current size

 private:
  std::unique_ptr<std::byte[]> data_;
  std::size_t size_ = 0;
};

/// A number of bytes, or its upper limit.
struct ByteCount {
  std::int64_t bytes = 0;
  bool is_exact = true;
};

/// A filter to undo: it computes `out` from `in`.
struct FilterStep {
  Filter filter;
  ByteCount in, out;
};
/// The steps that undo the filters of a chunk of `bytes` bytes, in reverse order of the filters. Empty if the chunk is
/// stored without filters.
/// \throws Error kCorruption  a filter cannot have been applied
std::vector<FilterStep> steps_to_undo(std::span<const Filter> filters, const ChunkPlace& place, std::int64_t bytes,
                                      std::string_view shown);

/// Undoes `steps`, one after another. `shown` names the chunk.
/// \throws Error kCorruption  (kind crc_mismatch) a checksum differs, (kind bad_header) the bytes are not a zlib
///   stream, or it decodes to more or fewer bytes
Bytes undo(std::span<const FilterStep> steps, Bytes stored, std::string_view shown);

/// Restores elements from their byte planes: byte k of element i is byte i of plane k. Bytes after the last whole
/// element follow the planes, and are copied to the same offset. \pre equal sizes
void unshuffle(std::span<const std::byte> planes, std::size_t element_bytes, std::span<std::byte> elements);

inline constexpr std::int64_t kFletcherBytes = 4;  ///< The size of the checksum after the data.

/// The checksum of HDF5's fletcher32 filter.
class Fletcher32 {
 public:
  /// Continues the sum. \pre only the last data has an odd number of bytes
  void add(std::span<const std::byte> data);
  /// Compares with the stored sum, of kFletcherBytes. HDF5 before 1.6.3 swapped the bytes in each half of the sum,
  /// which is also accepted. \throws Error kCorruption (kind crc_mismatch)
  void check(std::span<const std::byte> stored, std::string_view shown) const;

 private:
  std::uint32_t sum_ = 0, sum_of_sums_ = 0;
};

}  // namespace shard::hdf5
