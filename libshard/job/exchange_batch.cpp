#include "libshard/job/exchange_batch.h"

#include "libshard/job/box_request.h"

namespace shard {

std::vector<BoxNeed> needs_of(const Plan& plan, std::int64_t tile, const SenderOf& sender_of, int own) {
  const Unit& unit = plan.unit_of(tile);
  const std::span<const Piece> from = plan.from(unit);
  std::vector<BoxNeed> needs;
  for_each_need(plan, unit, tile, [&](std::uint32_t piece, const Box& box) {
    const int sender = sender_of(from[piece]);
    if (sender != own) needs.push_back({sender, box.numel() * element_bytes(unit.from)});
  });
  return needs;
}

void ExchangeBatch::add(const Plan& plan, std::int64_t tile, const SenderOf& sender_of, int own,
                        std::map<int, WireWriter>& requests) {
  const Unit& unit = plan.unit_of(tile);
  const std::span<const Piece> from = plan.from(unit);
  AwaitedTile& awaited = tiles_.emplace_back();
  awaited.tile = tile;
  for_each_need(plan, unit, tile, [&](std::uint32_t piece, const Box& box) {
    const int sender = sender_of(from[piece]);
    if (sender == own) return;
    const std::int64_t bytes = box.numel() * element_bytes(unit.from);
    awaited.boxes.push_back({piece, box.dims, sender, numbers_.size(), bytes});
    numbers_.insert(numbers_.end(), box.offset.begin(), box.offset.begin() + box.dims);
    numbers_.insert(numbers_.end(), box.size.begin(), box.size.begin() + box.dims);
    regions_[sender].bytes += bytes;
    write_request(requests[sender], from[piece], box, element_bytes(unit.from));
  });
  awaited.missing = awaited.boxes.size();
  missing_ += awaited.boxes.size();
  ++unwritten_;
}

std::int64_t ExchangeBatch::bytes() const {
  std::int64_t all = 0;
  for (const auto& [sender, region] : regions_) all += region.bytes;
  return all;
}

void ExchangeBatch::lay_out(PieceMemory memory) {
  memory_ = std::move(memory);
  std::byte* end = memory_.carried;
  std::map<int, std::byte*> next;
  for (auto& [sender, region] : regions_) {
    region.data = next[sender] = end;
    end += region.bytes;
  }
  for (AwaitedTile& tile : tiles_) {
    for (AwaitedTile::Box& box : tile.boxes) {
      box.data = next[box.sender];
      next[box.sender] += box.bytes;
      regions_[box.sender].boxes.emplace_back(&tile, box.bytes);
    }
  }
}

bool ExchangeBatch::awaits(int sender) const {
  const auto region = regions_.find(sender);
  return region != regions_.end() && region->second.arrived < region->second.boxes.size();
}

std::span<std::byte> ExchangeBatch::place_for(int sender, std::size_t boxes) {
  const Region& region = regions_.at(sender);
  if (boxes > region.boxes.size() - region.arrived) return {};
  std::int64_t bytes = 0;
  for (std::size_t i = 0; i < boxes; ++i) bytes += region.boxes[region.arrived + i].second;
  return {region.data + region.arrived_bytes, static_cast<std::size_t>(bytes)};
}

std::vector<AwaitedTile*> ExchangeBatch::arrive(int sender, std::size_t boxes) {
  Region& region = regions_.at(sender);
  std::vector<AwaitedTile*> complete;
  for (std::size_t i = 0; i < boxes; ++i) {
    const auto& [tile, bytes] = region.boxes[region.arrived++];
    region.arrived_bytes += bytes;
    if (--tile->missing == 0) complete.push_back(tile);
  }
  missing_ -= boxes;
  return complete;
}

ReceivedBox ExchangeBatch::received(const AwaitedTile::Box& box) const {
  const auto dims = static_cast<std::size_t>(box.dims);
  const std::span<const std::int64_t> numbers = std::span(numbers_).subspan(box.numbers, 2 * dims);
  return {numbers.first(dims), numbers.subspan(dims), box.data};
}

}  // namespace shard
