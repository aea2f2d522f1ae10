#include "libshard/exec/tile_feed.h"

#include <algorithm>

#include "libshard/core/digest.h"
#include "libshard/exec/piece_reader.h"
#include "libshard/exec/runs.h"
#include "libshard/plan/order.h"
#include "libshard/plan/overlaps.h"

namespace shard {

namespace {

constexpr std::int64_t kLeastRun = 256;  ///< The least average run, in bytes: records then are at most an eighth.

/// Extends `all` to the smallest box that contains both.
void widen(Box& all, const Box& more) {
  for (std::size_t d = 0; d < static_cast<std::size_t>(all.dims); ++d) {
    const std::int64_t end = std::max(all.offset[d] + all.size[d], more.offset[d] + more.size[d]);
    all.offset[d] = std::min(all.offset[d], more.offset[d]);
    all.size[d] = end - all.offset[d];
  }
}

}  // namespace

bool sum_received(const Catalog& source, const Piece& piece, const ReceivedBox& received, std::int64_t element_bytes,
                  std::vector<CrcRun>& runs) {
  // Runs can only complete the checksum of a storage if the whole piece is one run of it.
  if (!source.storages[piece.storage].crc32 || !is_one_run(piece.sizes.span(), piece.strides.span())) return true;
  if (received.is_on_device) return false;
  const Box box(received.offsets, received.sizes);
  Numbers packed;
  const BufferBox whole = row_major_box(box, received.data, packed);
  const std::int64_t first = piece.first + distance(piece.offsets.begin(), box.offset.data(), piece.strides.span());
  const std::int64_t most = box.numel() * element_bytes / kLeastRun + 1;
  const std::size_t before = runs.size();
  bool is_few = true;
  walk_runs(whole.sizes, piece.strides.span(), whole.strides,
            [&](std::int64_t in_storage, std::int64_t in_memory, std::int64_t elements) {
              is_few = is_few && std::ssize(runs) - static_cast<std::int64_t>(before) < most;
              if (!is_few) return;
              const std::span<const std::byte> bytes(whole.data + in_memory * element_bytes,
                                                     static_cast<std::size_t>(elements * element_bytes));
              runs.push_back({(first + in_storage) * element_bytes, std::ssize(bytes), piece.storage, crc32(bytes)});
            });
  if (!is_few) runs.resize(before);
  return is_few;
}

void for_each_need(const Plan& plan, const Unit& unit, std::int64_t tile,
                   const std::function<void(std::uint32_t piece, const Box& box)>& each) {
  for_each_need(plan, unit, tile_box(unit, tile - unit.first_tile), each);
}

void for_each_need(const Plan& plan, const Unit& unit, const Box& box,
                   const std::function<void(std::uint32_t piece, const Box& box)>& each) {
  const std::span<const Piece> from = plan.from(unit), to = plan.to(unit);
  // For each source piece in the tile, the needed box is the bounding box of its overlaps with the target pieces.
  const auto [begin, end] = candidates(from, box);
  for (std::uint32_t i = begin; i < end; ++i) {
    const Box common = intersect(box, Box(from[i].offsets, from[i].sizes));
    if (common.empty()) continue;
    Box needed;
    bool is_needed = false;
    const auto [first, last] = candidates(to, common);
    for (const Piece& piece : to.subspan(first, last - first)) {
      const Box wanted = intersect(common, Box(piece.offsets, piece.sizes));
      if (wanted.empty()) continue;
      if (is_needed) {
        widen(needed, wanted);
      } else {
        needed = wanted;
      }
      is_needed = true;
    }
    if (is_needed) each(i, needed);
  }
}

}  // namespace shard
