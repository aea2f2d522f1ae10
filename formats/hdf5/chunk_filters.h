/// \file
/// HDF5's filters undone in memory: deflate, lzf, shuffle, fletcher32. Pure. Inside formats/hdf5 only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "formats/hdf5/described.h"

namespace shard::hdf5 {

/// Memory that nobody zeroes first.
class Bytes {
 public:
  Bytes() = default;
  explicit Bytes(std::size_t size) : data_(std::make_unique_for_overwrite<std::byte[]>(size)), size_(size) {}
  std::span<std::byte> span() const { return {data_.get(), size_}; }
  std::size_t size() const { return size_; }
  void shrink(std::size_t size) { size_ = size; }  ///< \pre not larger

 private:
  std::unique_ptr<std::byte[]> data_;
  std::size_t size_ = 0;
};

/// A number of bytes, or the most that it may be.
struct ByteCount {
  std::int64_t bytes = 0;
  bool is_exact = true;
};

/// A filter to undo: it makes `out` of `in`.
struct FilterStep {
  Filter filter;
  ByteCount in, out;
};
/// The filters that were applied to a chunk of `bytes` bytes, the last first. Without any it is stored as it is.
/// \throws Error kCorruption  a filter that cannot have been applied
std::vector<FilterStep> steps_to_undo(std::span<const Filter> filters, const ChunkPlace& place, std::int64_t bytes,
                                      std::string_view shown);

/// Undoes `steps`, one after another. `shown` names the chunk.
/// \throws Error kCorruption  (kind crc_mismatch) a checksum differs, (kind bad_header) not a zlib stream, or more or
/// fewer bytes come out
Bytes undo(std::span<const FilterStep> steps, Bytes stored, std::string_view shown);

/// Elements of their byte planes: byte k of element i is byte i of plane k. What is left behind the last whole element
/// stands behind the planes, and stays there. \pre equal sizes
void unshuffle(std::span<const std::byte> planes, std::size_t element_bytes, std::span<std::byte> elements);

inline constexpr std::int64_t kFletcherBytes = 4;  ///< Behind the data.

/// The sum of HDF5's fletcher32 filter.
class Fletcher32 {
 public:
  /// Continues the sum. \pre only the last data has an odd number of bytes
  void add(std::span<const std::byte> data);
  /// Compares with the stored sum, of kFletcherBytes. Sums with the bytes of each half swapped are those of HDF5 before
  /// 1.6.3, and fit too. \throws Error kCorruption (kind crc_mismatch)
  void check(std::span<const std::byte> stored, std::string_view shown) const;

 private:
  std::uint32_t sum_ = 0, sum_of_sums_ = 0;
};

}  // namespace shard::hdf5
