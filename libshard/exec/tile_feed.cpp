#include "libshard/exec/tile_feed.h"

#include <algorithm>

#include "libshard/exec/piece_reader.h"
#include "libshard/plan/order.h"
#include "libshard/plan/overlaps.h"

namespace shard {

namespace {

/// Makes `all` the smallest box around both.
void widen(Box& all, const Box& more) {
  for (std::size_t d = 0; d < static_cast<std::size_t>(all.dims); ++d) {
    const std::int64_t end = std::max(all.offset[d] + all.size[d], more.offset[d] + more.size[d]);
    all.offset[d] = std::min(all.offset[d], more.offset[d]);
    all.size[d] = end - all.offset[d];
  }
}

}  // namespace

void for_each_need(const Plan& plan, const Unit& unit, std::int64_t tile,
                   const std::function<void(std::uint32_t piece, const Box& box)>& each) {
  for_each_need(plan, unit, tile_box(unit, tile - unit.first_tile), each);
}

void for_each_need(const Plan& plan, const Unit& unit, const Box& box,
                   const std::function<void(std::uint32_t piece, const Box& box)>& each) {
  const std::span<const Piece> from = plan.from(unit), to = plan.to(unit);
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

struct BoxReader::Impl {
  PieceReader reader;
  std::vector<std::byte> staging;
};

BoxReader::BoxReader(const Catalog& source, const Reader& reader, SourceChecks& checks, Progress& progress,
                     std::int64_t staging_bytes, std::stop_token stop)
    : impl_(std::make_unique<Impl>(Impl{PieceReader(source, reader, checks, progress, std::move(stop)),
                                        std::vector<std::byte>(static_cast<std::size_t>(staging_bytes))})) {}
BoxReader::~BoxReader() = default;

void BoxReader::read(const Piece& piece, const Box& box, std::int64_t element_bytes, std::span<std::byte> out) {
  Numbers strides;
  const BufferBox packed = row_major_box(box, out.data(), strides);
  impl_->reader.read(piece, box, static_cast<std::size_t>(element_bytes), std::span(&packed, 1), impl_->staging);
}

}  // namespace shard
