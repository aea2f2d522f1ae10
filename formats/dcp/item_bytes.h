/// \file
/// The bytes of items, seen as a file: many small items read in few calls, and items compressed with torch's transform
/// stream.zstd/1.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "formats/dcp/metadata.h"
#include "libshard/io/source_store.h"

namespace shard::dcp {

/// A file with a cache: reads of ranges that `fetch` has loaded are served from memory, all others go to the file.
/// Threads: one.
class FetchedFile : public RandomReader {
 public:
  explicit FetchedFile(std::shared_ptr<const RandomReader> file);
  /// The bytes that are loaded from the front and from the end of an item.
  struct Ends {
    std::int64_t front = 4096, end = 4096;
  };
  /// Loads the front and the end of items, and small items whole, in few calls. Drops the ranges loaded before.
  /// \pre the items are sorted by offset and inside the file.
  /// \returns the number of items loaded: as many as fit in about one MiB, at least one.
  std::size_t fetch(std::span<const Item> items, const Ends& ends);
  std::size_t fetch(std::span<const Item> items) { return fetch(items, Ends()); }
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

/// The decoded bytes of one item, as a file that starts at 0. No header records their number, so the constructor
/// decodes the whole stream once. It keeps both ends, which a zip's reader needs. A read of the middle decodes again.
///
/// Threads: one. Memory: the zstd window while it decodes (at most 128 MiB; torch writes 2 MiB), then 128 KiB.
class ZstdItem : public RandomReader {
 public:
  /// \param arena  the decoded bytes are charged to its budget, now and when the middle is read; must outlive this.
  /// \throws Error kCorruption (kind bad_header)  the bytes are not a zstd stream, the stream is truncated, or it
  ///   decodes to more than `limit_bytes` or than the budget allows.
  /// \throws Error kUnsupported  a window above 128 MiB.
  ZstdItem(std::shared_ptr<const RandomReader> file, const Item& item, std::int64_t limit_bytes, Arena& arena);
  void read_at(std::int64_t offset_bytes, std::span<std::byte> out) const override;
  std::int64_t size() const override { return bytes_; }
  /// The size of the compressed stream in the file, because decoded bytes are not stored in any file.
  std::int64_t allocated_bytes(std::int64_t offset_bytes, std::int64_t count) const override;

 private:
  void decode(std::int64_t limit_bytes);
  void keep(std::span<const std::byte> decoded);

  std::shared_ptr<const RandomReader> file_;
  Item item_;
  Arena& arena_;
  std::int64_t bytes_ = 0;
  std::vector<std::byte> front_, end_;                 ///< The first and the last bytes, if the item has that many.
  mutable std::shared_ptr<const RandomReader> whole_;  ///< Decodes again; created on demand.
};

/// The decoded bytes of an item whose decoded size is known, as a view that decodes while it is read.
/// \param arena  the decoded bytes are charged to its budget, and it must outlive the view; null: no charge.
/// Threads: safe if `arena` is null.
std::shared_ptr<const RandomReader> zstd_view(std::shared_ptr<const RandomReader> file, const Item& item,
                                              std::int64_t decoded_bytes, Arena* arena = nullptr);

}  // namespace shard::dcp
