#include "libshard/job/exchange_schedule.h"

#include <fmt/format.h>

#include <algorithm>

#include "libshard/core/error.h"

namespace shard {

namespace {

constexpr std::int64_t kMostMeetings = 64;  ///< The largest number of ranks that a sender meets in one round.

}  // namespace

std::int64_t exchange_unit(std::int64_t max_memory_bytes) {
  constexpr std::int64_t kLeast = 1 << 20;
  if (max_memory_bytes < kExchangeParts * kLeast) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("cannot exchange pieces between ranks within {} bytes of memory", max_memory_bytes))
        .expected("at least 8MiB")
        .found(max_memory_bytes)
        .suggest(Remedy::kMoreMemory);
  }
  return max_memory_bytes / kExchangeParts;
}

std::int64_t most_boxes(int ranks) {
  constexpr std::int64_t kOfAll = 1 << 16, kLeast = 64;
  return std::max(kLeast, kOfAll / ranks);
}

Meetings::Meetings(int rank, int ranks, std::int64_t writers)
    : rank_(rank),
      own_period_(std::max<std::int64_t>(1, (writers + kMostMeetings - 1) / kMostMeetings)),
      periods_(static_cast<std::size_t>(ranks), 1) {}

/// The first tile always fits, so that a batch makes progress regardless of the limits.
bool BatchLimit::takes(std::span<const BoxNeed> boxes) {
  std::int64_t bytes = bytes_;
  bool is_long = false;
  std::map<int, std::int64_t> more;
  for (const BoxNeed& box : boxes) {
    bytes += box.bytes;
    is_long = boxes_[box.sender] + ++more[box.sender] > most_boxes_ || is_long;
  }
  if (!is_empty_ && (is_long || bytes > unit_bytes_)) return false;
  is_empty_ = false;
  bytes_ = bytes;
  for (const auto& [sender, count] : more) boxes_[sender] += count;
  return true;
}

void Outlet::ask(int rank, std::span<const std::int64_t> box_bytes) {
  if (!box_bytes.empty()) waiting_[rank].push_back({{box_bytes.begin(), box_bytes.end()}, 0});
}

/// Deals out the free bytes box by box. Each rank in turn gets its next box, until no rank's next box fits. A rank gets
/// boxes of its first batch only, so that batches stay in order.
std::vector<Outlet::Grant> Outlet::next_round(std::int64_t limit_bytes, const std::function<bool(int)>& meets) {
  std::vector<Grant> grants;
  std::vector<Batch*> fronts;
  const auto add = [&](auto& entry) {
    if (!meets(entry.first)) return;
    grants.push_back({entry.first, 0, 0});
    fronts.push_back(&entry.second.front());
  };
  // Ranks take turns from `begins_` on, around the end.
  const auto first = waiting_.lower_bound(begins_);
  for (auto each = first; each != waiting_.end(); ++each) add(*each);
  for (auto each = waiting_.begin(); each != first; ++each) add(*each);
  if (grants.empty()) return grants;
  begins_ = grants.front().rank + 1;
  // Invariant: `left` bytes of the buffer are free, and `open` ranks still have a box that was not too large.
  std::int64_t left = limit_bytes;
  bool is_first = true;
  std::vector<std::size_t> open(grants.size());
  for (std::size_t i = 0; i < open.size(); ++i) open[i] = i;
  while (!open.empty()) {
    std::erase_if(open, [&](std::size_t i) {
      Batch& batch = *fronts[i];
      if (batch.sent == batch.box_bytes.size()) return true;
      const std::int64_t bytes = batch.box_bytes[batch.sent];
      if (bytes > left && !is_first) return true;
      is_first = false;
      left -= bytes;
      ++batch.sent;
      ++grants[i].boxes;
      grants[i].bytes += bytes;
      return false;
    });
  }
  for (std::size_t i = 0; i < grants.size(); ++i) {
    if (fronts[i]->sent < fronts[i]->box_bytes.size()) continue;
    const auto entry = waiting_.find(grants[i].rank);
    entry->second.pop_front();
    if (entry->second.empty()) waiting_.erase(entry);
  }
  std::erase_if(grants, [](const Grant& grant) { return grant.boxes == 0; });
  std::ranges::sort(grants, {}, &Grant::rank);
  return grants;
}

}  // namespace shard
