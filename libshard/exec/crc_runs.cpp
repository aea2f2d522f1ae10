#include "libshard/exec/crc_runs.h"

#include <algorithm>

#include "libshard/core/digest.h"

namespace shard {

bool CrcRuns::add(std::int64_t offset, std::int64_t bytes, std::uint32_t crc) {
  auto after = runs_.lower_bound(offset);
  if (after != runs_.end() && after->first < offset + bytes) return false;
  if (after != runs_.begin()) {
    const auto before = std::prev(after);
    const std::int64_t end = before->first + before->second.bytes;
    if (end > offset) return false;
    if (end == offset) {
      crc = crc32_combine(before->second.crc, crc, bytes);
      offset = before->first;
      bytes += before->second.bytes;
      runs_.erase(before);
    }
  }
  if (after != runs_.end() && after->first == offset + bytes) {
    crc = crc32_combine(crc, after->second.crc, after->second.bytes);
    bytes += after->second.bytes;
    after = runs_.erase(after);
  }
  runs_.emplace_hint(after, offset, Run{bytes, crc});
  return true;
}

std::vector<CrcRuns::Range> CrcRuns::missing(std::int64_t begin, std::int64_t end) const {
  std::vector<Range> parts;
  auto run = runs_.upper_bound(begin);
  if (run != runs_.begin()) --run;
  for (; run != runs_.end() && run->first < end; ++run) {
    if (run->first > begin) parts.push_back({begin, run->first});
    begin = std::max(begin, run->first + run->second.bytes);
  }
  if (begin < end) parts.push_back({begin, end});
  return parts;
}

}  // namespace shard
