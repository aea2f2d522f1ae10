/// \file Reads boxes of source pieces into memory, with any strides on either side. Inside libshard/exec and
///   libshard/job only.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <stop_token>
#include <vector>

#include "libshard/exec/execute.h"
#include "libshard/plan/order.h"

namespace shard {

/// A box of a unit, with its strides in a buffer. Ownership: a view.
struct BufferBox {
  std::span<const std::int64_t> offsets, sizes;
  std::span<const std::int64_t> strides;  ///< In the buffer, in elements.
  std::byte* data = nullptr;              ///< The address of the element at `offsets`.

  Box box() const { return Box(offsets, sizes); }
};

/// The whole `box`, row-major and without gaps at `data`. Ownership: a view of `box` and of `strides`, which it fills.
BufferBox row_major_box(const Box& box, std::byte* data, Numbers& strides);

/// Threads: each thread needs its own; the reader and the counters are shared.
class PieceReader {
 public:
  PieceReader(const Catalog& source, const Reader& reader, SourceChecks& checks, Progress& progress,
              std::stop_token stop)
      : source_(source), reader_(reader), checks_(checks), progress_(progress), stop_(std::move(stop)) {}

  /// Sets a record that also receives the checksums and overflows of all reads. Null: none.
  void set_record(TileRecord* record) { record_ = record; }

  /// Announces the read of `box` to a store with long round trips, if the box is one run in its storage. A loop that
  /// announces several reads before the first one has their requests under way at one time. \returns false if
  /// the disk answers at once, so the loop can end. \pre `box` is inside `piece`
  bool expect(const Piece& piece, const Box& box, std::size_t element_bytes);
  /// Reads `box` of `piece` into the parts of `boxes` inside it. `boxes` do not overlap. This is a single read if the
  /// box is one run in its storage and in the buffer, and `boxes` cover it. Otherwise each read fills at most
  /// `staging`, and its elements are scattered from there. \pre `box` is inside `piece`
  /// \param is_final  nothing reads the boxes soon, so that the processor's caches need not have them
  void read(const Piece& piece, const Box& box, std::size_t element_bytes, std::span<const BufferBox> boxes,
            std::span<std::byte> staging, bool is_final = false);
  /// The elements of `wanted` in memory, if the piece contains them all in the order that the box needs. Otherwise
  /// null. If the result is not null, they count as read.
  const std::byte* find_in_memory(const Piece& piece, std::size_t element_bytes, const BufferBox& wanted);

 private:
  struct Request;
  void read_run(const Request& request, std::int64_t element, std::span<std::byte> out);
  void count_read(const Request& request, const ReadBytes& read);
  void check_reads(const Request& request);
  void count_overflows(std::int64_t overflows);
  bool read_directly(const Request& request);
  void read_block(const Request& request, const Box& block);
  const RandomReader& bytes_of(std::uint32_t storage);

  const Catalog& source_;
  const Reader& reader_;
  SourceChecks& checks_;
  Progress& progress_;
  std::stop_token stop_;
  TileRecord* record_ = nullptr;
  std::vector<ReadBytes> reads_;  ///< Reads that are not checked yet.
  std::uint32_t open_storage_ = kNoIndex;
  std::shared_ptr<const RandomReader> open_file_;  ///< The reader of `open_storage_`.
};

}  // namespace shard
