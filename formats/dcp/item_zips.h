/// \file
/// The zips of tensors' items, to be written: what stands around the elements of one storage.
///
/// Items of boxes of one shape and dtype differ in CRCs only, so that few zips are laid out.
#pragma once

#include <cstdint>
#include <deque>
#include <string>

#include "formats/torch/saved_zip.h"
#include "libshard/catalog/catalog.h"

namespace shard::dcp {

/// The zip of one item.
class ItemZip {
 public:
  ItemZip(const StoredTensor& box, std::int64_t storage_bytes);
  /// Whether the box's item has the same zip but for the CRCs.
  bool fits(const StoredTensor& box, std::int64_t storage_bytes) const {
    return dtype_ == box.dtype && shape_ == box.shape && strides_ == box.strides && first_ == box.first &&
           storage_bytes_ == storage_bytes;
  }
  std::int64_t total_bytes() const { return zip_.total_bytes(); }
  std::int64_t data_offset() const { return zip_.data_offset(0); }
  /// All that stands before the elements, from the zip's begin.
  const std::string& before() const { return before_; }
  /// Appends all that stands after them, to the zip's end.
  void append_after(std::uint32_t crc, std::string& out) const;

 private:
  ItemZip(const StoredTensor& box, std::int64_t storage_bytes, const std::string& pickle);

  DType dtype_;
  Dims shape_, strides_;
  std::int64_t first_, storage_bytes_;
  torch_save::SavedZip zip_;
  std::uint32_t pickle_crc_;
  std::string before_;
};

/// Makes zips of items, and remembers the last few. Threads: one.
class ItemZips {
 public:
  /// Valid until the next call.
  const ItemZip& zip_of(const Catalog& target, std::uint32_t stored);

 private:
  static constexpr std::size_t kMost = 64;
  std::deque<ItemZip> known_;
  std::size_t last_ = 0;
};

}  // namespace shard::dcp
