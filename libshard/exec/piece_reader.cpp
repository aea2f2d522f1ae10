#include "libshard/exec/piece_reader.h"

#include <algorithm>
#include <mutex>
#include <optional>

#include "libshard/core/digest.h"
#include "libshard/core/error.h"
#include "libshard/exec/runs.h"
#include "libshard/exec/strided_copy.h"
#include "libshard/exec/transpose.h"
#include "libshard/io/cached_bytes.h"

namespace shard {

namespace {

/// Bytes that the second-level cache still has once they are read, so that their checksum costs half as much.
constexpr std::size_t kCachedBlock = 256 << 10;
/// Bytes of one read between two looks at the stop request: a disk of 10 MB/s has them in 100 ms.
constexpr std::size_t kStoppableBlock = 1 << 20;

/// The layout of a block in the staging buffer. Dimensions with small strides are `joined`: one call reads their whole
/// span including gaps, and the buffer has the same layout as the storage. The spans of the other dimensions follow one
/// another without gaps.
struct Staged {
  Numbers sides;                   ///< The sizes of the block.
  Numbers strides;                 ///< Element strides in the buffer; 0 if the storage repeats elements.
  Numbers rows;                    ///< The block with size 1 in every joined dimension: one read per index.
  std::int64_t span_elements = 1;  ///< The length of one read.
};

/// The side of a dimension of `size` if `room` elements fit. Parts are balanced, so that the last one is not much
/// shorter. If possible, a side is a number of whole cache lines, because those are the best unit for a transpose.
std::int64_t balanced_side(std::int64_t size, std::int64_t room, std::int64_t element_bytes) {
  const auto whole = static_cast<std::int64_t>(kCacheLine) / element_bytes;
  const std::int64_t line = room < size && room >= whole ? std::max<std::int64_t>(whole, 1) : 1;
  const std::int64_t fits = std::clamp<std::int64_t>(room - room % line, 1, size);
  const std::int64_t parts = (size + fits - 1) / fits;
  const std::int64_t side = (size + parts - 1) / parts;
  return (side + line - 1) / line * line;
}

/// Chooses the largest block of a box of `sizes` within a piece that uses at most `elements` of the buffer. It follows
/// the order of the piece's strides: whole inner dimensions while they fit, a part of the next one, and 1 in the
/// others.
///
/// Invariants of the loop: the dimensions so far use `held` elements of the buffer, which equals `span_elements` as
/// long as all of them are joined. `piece_span` is the number of elements from their first to their last in the whole
/// piece.
Staged stage(const Piece& piece, std::span<const std::int64_t> sizes, std::int64_t elements,
             std::int64_t element_bytes) {
  Staged staged;
  std::fill_n(staged.sides.begin(), sizes.size(), std::int64_t{1});
  std::fill_n(staged.strides.begin(), sizes.size(), std::int64_t{0});
  std::fill_n(staged.rows.begin(), sizes.size(), std::int64_t{1});
  const std::span<const std::int64_t> strides = piece.strides.span();
  const Order order = order_of(strides);
  std::int64_t held = 1, piece_span = 1;
  bool all_joined = true;
  for (std::size_t i = sizes.size(); i-- > 0;) {
    const auto d = static_cast<std::size_t>(order[i]);
    const std::int64_t in_piece = piece.sizes[order[i]];
    if (in_piece == 1) continue;
    all_joined =
        all_joined && (sizes[d] == 1 || is_read_over(strides[d], staged.span_elements, piece_span, element_bytes));
    piece_span += (in_piece - 1) * strides[d];
    if (sizes[d] == 1) continue;
    const std::int64_t step = all_joined ? strides[d] : held;
    std::int64_t side = sizes[d];
    if (step > 0) side = balanced_side(sizes[d], (elements - held) / step + 1, element_bytes);
    staged.sides[d] = side;
    staged.strides[d] = step;
    held += (side - 1) * step;
    if (all_joined) staged.span_elements = held;
    if (!all_joined) staged.rows[d] = side;
    if (side < sizes[d]) break;
  }
  return staged;
}

/// Calls `each` with boxes of `sides` (shorter at the end) that together are `box`, in the order of `strides`.
template <class Each>
void for_each_block(const Box& box, std::span<const std::int64_t> strides, const Numbers& sides, const Each& each) {
  const Order order = order_of(strides);
  Box block = box;
  const auto clip = [&](std::size_t d) {
    block.size[d] = std::min(sides[d], box.offset[d] + box.size[d] - block.offset[d]);
  };
  const auto dims = static_cast<std::size_t>(box.dims);
  for (std::size_t d = 0; d < dims; ++d) clip(d);
  for (;;) {
    each(block);
    std::size_t i = dims;
    while (i-- > 0) {
      const auto d = static_cast<std::size_t>(order[i]);
      block.offset[d] += sides[d];
      const bool is_inside = block.offset[d] < box.offset[d] + box.size[d];
      if (!is_inside) block.offset[d] = box.offset[d];
      clip(d);
      if (is_inside) break;
      if (i == 0) return;
    }
    if (dims == 0) return;
  }
}

}  // namespace

BufferBox row_major_box(const Box& box, std::byte* data, Numbers& strides) {
  const std::span<const std::int64_t> sizes = box.sizes();
  const std::span<std::int64_t> steps = std::span(strides).first(sizes.size());
  row_major_strides(sizes, steps);
  return {box.offsets(), sizes, steps, data};
}

struct PieceReader::Request {
  const Piece& piece;
  const Box& box;
  std::int64_t element_bytes;
  std::span<const BufferBox> boxes;
  std::span<std::byte> staging;
  bool may_complete;      ///< Whether reads of the whole piece read every byte of its span exactly once.
  bool is_final = false;  ///< See read().

  std::size_t bytes(std::int64_t elements) const { return static_cast<std::size_t>(elements * element_bytes); }
  /// The index in the storage of the element at `offset`.
  std::int64_t element_at(const std::int64_t* offset) const {
    return piece.first + distance(piece.offsets.begin(), offset, piece.strides.span());
  }
  std::byte* address_of(const BufferBox& part, const std::int64_t* offset) const {
    return part.data + distance(part.offsets.data(), offset, part.strides) * element_bytes;
  }
};

const RandomReader& PieceReader::bytes_of(std::uint32_t index) {
  const Storage& storage = source_.storages[index];
  if (open_storage_ != kNoIndex) {
    const Storage& open = source_.storages[open_storage_];
    if (index == open_storage_ || (storage.plain && open.plain && storage.file == open.file)) return *open_file_;
  }
  open_file_ = reader_.bytes_of(index);
  open_storage_ = index;
  return *open_file_;
}

void PieceReader::read_run(const Request& request, std::int64_t element, std::span<std::byte> out) {
  check_stop(stop_);
  const Storage& storage = source_.storages[request.piece.storage];
  const std::int64_t offset = element * request.element_bytes;
  const RandomReader& file = bytes_of(request.piece.storage);
  const bool is_summed = request.may_complete && storage.crc32.has_value() && file.requests_at_once() == 1;
  const bool is_in_place = request.is_final && file.descriptor() >= 0;
  std::uint32_t crc = 0;
  const bool is_copied = is_in_place && storage.plain &&
                         copy_cached_bytes(file.descriptor(), storage.offset + offset, out, is_summed ? &crc : nullptr);
  const std::size_t most_bytes = is_in_place ? kStoppableBlock : out.size();
  const std::size_t block_bytes = is_summed ? kCachedBlock : most_bytes;
  for (std::size_t done = 0; !is_copied && done < out.size(); done += block_bytes) {
    if (done > 0) check_stop(stop_);
    const std::span<std::byte> block = out.subspan(done, std::min(block_bytes, out.size() - done));
    file.read_at(storage.offset + offset + static_cast<std::int64_t>(done), block);
    if (is_summed) crc = crc32(block, crc);
  }
  count_read(request, {offset, out, is_summed ? std::optional(crc) : std::nullopt});
}

/// Counts a read. The next `check_reads` checks its bytes.
void PieceReader::count_read(const Request& request, const ReadBytes& read) {
  if (request.may_complete) reads_.push_back(read);
  progress_.read_calls.fetch_add(1, std::memory_order_relaxed);
  progress_.bytes_read.fetch_add(std::ssize(read.bytes), std::memory_order_relaxed);
}

void PieceReader::check_reads(const Request& request) {
  checks_.add(request.piece.storage, reads_, record_ != nullptr ? &record_->sources : nullptr);
  reads_.clear();
}

void PieceReader::count_overflows(std::int64_t overflows) {
  progress_.cast_overflows += overflows;
  if (record_ != nullptr) record_->cast_overflows += overflows;
}

/// Reads the box with one call if it is one run of its storage, and every element's offset in the buffer equals its
/// offset in that run. Otherwise reads nothing and returns false.
bool PieceReader::read_directly(const Request& request) {
  const std::span<const std::int64_t> strides = request.piece.strides.span();
  const Box& box = request.box;
  if (!is_one_run(box.sizes(), strides)) return false;
  std::byte* begin = nullptr;
  std::int64_t covered = 0;
  for (const BufferBox& part : request.boxes) {
    const Box common = intersect(box, part.box());
    const std::int64_t elements = common.numel();
    if (elements == 0) continue;
    for (std::size_t d = 0; d < strides.size(); ++d) {
      if (common.size[d] > 1 && strides[d] != part.strides[d]) return false;
    }
    std::byte* const here = request.address_of(part, common.offset.data()) -
                            distance(box.offset.data(), common.offset.data(), strides) * request.element_bytes;
    if (begin != nullptr && here != begin) return false;
    begin = here;
    covered += elements;
  }
  if (covered != box.numel()) return false;
  read_run(request, request.element_at(box.offset.data()), {begin, request.bytes(covered)});
  check_reads(request);
  return true;
}

void PieceReader::read_block(const Request& request, const Box& block) {
  const std::span<const std::int64_t> sizes = block.sizes();
  const std::span<const std::int64_t> strides = request.piece.strides.span();
  const auto room = static_cast<std::int64_t>(request.staging.size()) / request.element_bytes;
  const Staged staged = stage(request.piece, sizes, room, request.element_bytes);
  const std::span<const std::int64_t> steps = std::span(staged.strides).first(sizes.size());
  const std::int64_t first = request.element_at(block.offset.data());
  walk_runs(std::span(staged.rows).first(sizes.size()), strides, steps,
            [&](std::int64_t in_file, std::int64_t in_memory, std::int64_t) {
              read_run(request, first + in_file,
                       request.staging.subspan(request.bytes(in_memory), request.bytes(staged.span_elements)));
            });
  check_reads(request);
  for (const BufferBox& part : request.boxes) {
    const Box common = intersect(block, part.box());
    if (common.empty()) continue;
    const std::int64_t skipped = distance(block.offset.data(), common.offset.data(), steps);
    strided_copy(common.sizes(), request.staging.data() + skipped * request.element_bytes, steps,
                 request.address_of(part, common.offset.data()), part.strides,
                 static_cast<std::size_t>(request.element_bytes));
  }
}

void PieceReader::read(const Piece& piece, const Box& box, std::size_t element_bytes, std::span<const BufferBox> boxes,
                       std::span<std::byte> staging, bool is_final) {
  const Request request{piece,   box,     static_cast<std::int64_t>(element_bytes),
                        boxes,   staging, is_one_run(piece.sizes.span(), piece.strides.span()),
                        is_final};
  const RandomReader& file = bytes_of(piece.storage);
  const std::unique_lock<std::mutex> turn = file.turn();
  reads_.clear();  // The entries may belong to a read that failed.
  if (!read_directly(request)) {
    const auto room = static_cast<std::int64_t>(staging.size() / element_bytes);
    const Staged largest = stage(piece, box.sizes(), room, request.element_bytes);
    for_each_block(box, piece.strides.span(), largest.sides, [&](const Box& block) { read_block(request, block); });
  }
  count_overflows(file.take_overflows());
}

bool PieceReader::expect(const Piece& piece, const Box& box, std::size_t element_bytes) {
  const Storage& storage = source_.storages[piece.storage];
  if (storage.is_stream || !is_one_run(box.sizes(), piece.strides.span())) return true;
  const RandomReader& file = bytes_of(piece.storage);
  if (file.requests_at_once() == 1) return false;
  const Request request{piece, box, static_cast<std::int64_t>(element_bytes), {}, {}, true};
  const std::int64_t offset = request.element_at(box.offset.data()) * request.element_bytes;
  file.expect_read(storage.offset + offset, box.numel() * request.element_bytes);
  return true;
}

const std::byte* PieceReader::find_in_memory(const Piece& piece, std::size_t element_bytes, const BufferBox& wanted) {
  const Box box = wanted.box();
  const std::span<const std::int64_t> strides = piece.strides.span();
  if (intersect(box, Box(piece.offsets, piece.sizes)).numel() != box.numel()) return nullptr;
  for (std::size_t d = 0; d < strides.size(); ++d) {
    if (box.size[d] > 1 && strides[d] != wanted.strides[d]) return nullptr;
  }
  const Request request{piece, box, static_cast<std::int64_t>(element_bytes),
                        {},    {},  is_one_run(piece.sizes.span(), strides)};
  const std::int64_t offset = request.element_at(box.offset.data()) * request.element_bytes;
  const std::span<const std::byte> bytes =
      bytes_of(piece.storage).in_memory(source_.storages[piece.storage].offset + offset, request.bytes(box.numel()));
  if (bytes.empty()) return nullptr;
  reads_.clear();
  count_read(request, {offset, bytes, {}});
  check_reads(request);
  return bytes.data();
}

}  // namespace shard
