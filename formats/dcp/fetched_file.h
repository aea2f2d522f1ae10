/// \file
/// Reading many small items in few calls.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "formats/dcp/metadata.h"
#include "libshard/io/source_store.h"

namespace shard::dcp {

/// A file seen through memory: what `fetch` brought is served from there, the rest is read when asked for.
/// Threads: one.
class FetchedFile : public RandomReader {
 public:
  explicit FetchedFile(std::shared_ptr<const RandomReader> file);
  /// Brings the front and the end of items (small ones whole), in few calls; forgets what was brought before.
  /// \pre sorted by offset; inside the file.
  /// \returns how many of the items were brought: as many as about a mebibyte holds, at least one.
  std::size_t fetch(std::span<const Item> items);
  void read_at(std::int64_t offset_bytes, std::span<std::byte> out) const override;
  std::int64_t size() const override { return file_->size(); }
  std::int64_t allocated_bytes(std::int64_t offset_bytes, std::int64_t count) const override {
    return file_->allocated_bytes(offset_bytes, count);
  }
  /// The file itself.
  const std::shared_ptr<const RandomReader>& file() const { return file_; }

 private:
  struct Part {
    std::int64_t begin, end;  ///< In the file.
    std::size_t at;           ///< In memory.
  };
  /// Bytes that are in memory, or an empty span.
  std::span<const std::byte> view(std::int64_t offset_bytes, std::int64_t bytes) const;

  std::shared_ptr<const RandomReader> file_;
  std::vector<std::byte> memory_;
  std::vector<Part> parts_;  ///< By offset.
};

}  // namespace shard::dcp
