/// \file
/// Reading many small items in few calls.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "formats/dcp/metadata.h"
#include "libshard/io/source_store.h"

namespace shard::dcp {

/// A file with a cache: reads of ranges that `fetch` has loaded are served from memory, all others go to the file.
/// Threads: one.
class FetchedFile : public RandomReader {
 public:
  explicit FetchedFile(std::shared_ptr<const RandomReader> file);
  /// Loads the front and the end of items, and small items whole, in few calls. Drops the ranges loaded before.
  /// \pre the items are sorted by offset and inside the file.
  /// \returns the number of items loaded: as many as fit in about one MiB, at least one.
  std::size_t fetch(std::span<const Item> items);
  void read_at(std::int64_t offset_bytes, std::span<std::byte> out) const override;
  std::int64_t size() const override { return file_->size(); }
  std::int64_t allocated_bytes(std::int64_t offset_bytes, std::int64_t count) const override {
    return file_->allocated_bytes(offset_bytes, count);
  }
  /// The file behind the cache.
  const std::shared_ptr<const RandomReader>& file() const { return file_; }

 private:
  struct Part {
    std::int64_t begin, end;  ///< Offsets in the file.
    std::size_t at;           ///< Offset in memory.
  };
  /// The bytes if they are in memory, otherwise an empty span.
  std::span<const std::byte> view(std::int64_t offset_bytes, std::int64_t bytes) const;

  std::shared_ptr<const RandomReader> file_;
  std::vector<std::byte> memory_;
  std::vector<Part> parts_;  ///< Sorted by offset.
};

}  // namespace shard::dcp
