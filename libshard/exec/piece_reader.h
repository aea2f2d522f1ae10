/// \file
/// Reads boxes of source pieces into memory, whatever the strides on either side. Inside libshard/exec only.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <stop_token>
#include <vector>

#include "libshard/exec/execute.h"
#include "libshard/plan/order.h"

namespace shard {

/// A box of a unit, strided in a buffer. Ownership: a view.
struct BufferBox {
  std::span<const std::int64_t> offsets, sizes;
  std::span<const std::int64_t> strides;  ///< In the buffer, elements.
  std::byte* data = nullptr;              ///< The element at `offsets`.

  Box box() const { return Box(offsets, sizes); }
};

/// All of `box`, row-major without gaps at `data`. Ownership: a view of `box` and of `strides`, which it fills.
BufferBox row_major_box(const Box& box, std::byte* data, Numbers& strides);

/// Threads: one each; the reader and the counters are shared.
class PieceReader {
 public:
  PieceReader(const Catalog& source, const Reader& reader, SourceChecks& checks, Progress& progress,
              std::stop_token stop)
      : source_(source), reader_(reader), checks_(checks), progress_(progress), stop_(std::move(stop)) {}

  /// Where checksums of what is read go to as well; null: nowhere.
  void set_summed(std::vector<CrcRun>* summed) { summed_ = summed; }

  /// Reads `box`, which lies within `piece`, into the parts of `boxes` that lie in it. `boxes` do not overlap.
  /// One read where the box is one run in its storage and in the buffer and `boxes` cover it; else reads of up to
  /// `staging`, from where elements are scattered.
  void read(const Piece& piece, const Box& box, std::size_t element_bytes, std::span<const BufferBox> boxes,
            std::span<std::byte> staging);
  /// The elements of `wanted` where they lie in memory, if all are of `piece` and lie there as they shall in the box;
  /// else null. They then count as read.
  const std::byte* find_in_memory(const Piece& piece, std::size_t element_bytes, const BufferBox& wanted);

 private:
  struct Request;
  void read_run(const Request& request, std::int64_t element, std::span<std::byte> out);
  void count_read(const Request& request, std::int64_t offset_bytes, std::span<const std::byte> bytes);
  void check_reads(const Request& request);
  bool read_directly(const Request& request);
  void read_block(const Request& request, const Box& block);
  const RandomReader& bytes_of(std::uint32_t storage);

  const Catalog& source_;
  const Reader& reader_;
  SourceChecks& checks_;
  Progress& progress_;
  std::stop_token stop_;
  std::vector<CrcRun>* summed_ = nullptr;
  std::vector<ReadBytes> reads_;  ///< Those whose checksums are yet to be made.
  std::uint32_t open_storage_ = kNoIndex;
  std::shared_ptr<const RandomReader> open_file_;  ///< Where `open_storage_` is read.
};

}  // namespace shard
