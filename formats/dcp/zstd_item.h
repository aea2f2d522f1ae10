/// \file
/// Items that went through torch's transform stream.zstd/1: what they decode to, seen as a file.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "formats/dcp/metadata.h"
#include "libshard/io/source_store.h"

namespace shard::dcp {

/// The decoded bytes of one item, as a file that begins at 0. No header says how many there are, so making one decodes
/// the stream once, keeping what a zip's reader asks for: both ends. The middle is decoded again when it is read.
///
/// Threads: one. Memory: zstd's window (at most 128 MiB, written by torch 2 MiB) while it decodes, then 128 KiB.
class ZstdItem : public RandomReader {
 public:
  /// \param arena  its budget pays for what comes out, now and when the middle is read; must outlive this.
  /// \throws Error kCorruption (kind bad_header)  no zstd stream, one that is cut short, or more than `limit_bytes` or
  ///   what the budget allows come out.
  /// \throws Error kUnsupported  a window above 128 MiB.
  ZstdItem(std::shared_ptr<const RandomReader> file, const Item& item, std::int64_t limit_bytes, Arena& arena);
  void read_at(std::int64_t offset_bytes, std::span<std::byte> out) const override;
  std::int64_t size() const override { return bytes_; }
  /// What the file holds of the stream: decoded bytes are none of a file's.
  std::int64_t allocated_bytes(std::int64_t offset_bytes, std::int64_t count) const override;

 private:
  void decode(std::int64_t limit_bytes);
  void keep(std::span<const std::byte> decoded);

  std::shared_ptr<const RandomReader> file_;
  Item item_;
  Arena& arena_;
  std::int64_t bytes_ = 0;
  std::vector<std::byte> front_, end_;                 ///< The first and the last bytes, as many as there are.
  mutable std::shared_ptr<const RandomReader> whole_;  ///< Decodes again; made when it is needed.
};

/// The decoded bytes of an item whose decoded size is known: a view that decodes as it is read.
/// \param arena  its budget pays for what comes out, and it must outlive the view; null: nobody does.
/// Threads: safe, without an arena.
std::shared_ptr<const RandomReader> zstd_view(std::shared_ptr<const RandomReader> file, const Item& item,
                                              std::int64_t decoded_bytes, Arena* arena = nullptr);

}  // namespace shard::dcp
