/// \file
/// Items compressed with torch's transform stream.zstd/1: their decoded bytes, seen as a file.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "formats/dcp/metadata.h"
#include "libshard/io/source_store.h"

namespace shard::dcp {

/// The decoded bytes of one item, as a file that starts at 0. No header records their number, so the constructor
/// decodes the whole stream once. It keeps both ends, which a zip's reader needs. The middle is decoded again when it
/// is read.
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
