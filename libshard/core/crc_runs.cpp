#include "libshard/core/crc_runs.h"

#include <algorithm>

#include "libshard/core/digest.h"

namespace shard {

bool CrcRuns::add(std::int64_t offset, std::int64_t bytes, std::uint32_t crc) {
  const auto extend = [](Run& run, std::int64_t more, std::uint32_t crc_of_more) {
    run.crc = crc32_combine(run.crc, crc_of_more, more);
    run.bytes += more;
  };
  const auto after = runs_.lower_bound(offset);
  if (after != runs_.end() && after->first < offset + bytes) return false;
  auto joined = runs_.end();
  if (after != runs_.begin()) {
    const auto before = std::prev(after);
    const std::int64_t end = before->first + before->second.bytes;
    if (end > offset) return false;
    if (end == offset) joined = before;
  }
  if (joined != runs_.end()) {
    extend(joined->second, bytes, crc);
  } else {
    joined = runs_.emplace_hint(after, offset, Run{bytes, crc});
  }
  if (after == runs_.end() || after->first != offset + bytes) return true;
  extend(joined->second, after->second.bytes, after->second.crc);
  runs_.erase(after);
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
