#include "libshard/stores/part_layout.h"

#include <algorithm>

namespace shard {

namespace {

constexpr std::int64_t kLeastPartBytes = 5 << 20, kMostPartsOfObject = 10'000;

/// Adds the begins of the parts of [begin, end).
void cut(std::vector<std::int64_t>& begins, std::int64_t begin, std::int64_t end, std::int64_t part_bytes) {
  while (begin < end) {
    begins.push_back(begin);
    const std::int64_t rest = end - begin, left = rest - std::min(rest, part_bytes);
    const bool is_remainder_short = left > 0 && left < kLeastPartBytes;
    if (!is_remainder_short) {
      begin = end - left;
    } else {
      begin = rest >= 2 * kLeastPartBytes ? begin + rest / 2 : end;
    }
  }
}

}  // namespace

PartLayout even_layout(std::int64_t object_bytes, std::int64_t part_bytes) {
  PartLayout layout;
  for (std::int64_t begin = 0; begin < object_bytes; begin += part_bytes) layout.begins.push_back(begin);
  layout.begins.push_back(object_bytes);
  return layout;
}

namespace {

PartLayout layout_of_long_runs(std::int64_t object_bytes, std::int64_t part_bytes, std::span<const SourceRun> runs,
                               std::int64_t sent_bytes, std::int64_t least) {
  PartLayout layout = even_layout(sent_bytes, part_bytes);
  layout.begins.pop_back();
  std::int64_t passed = sent_bytes;  // The begin of the bytes that pass through the client.
  for (std::size_t i = 0; i < runs.size(); ++i) {
    const std::int64_t end = runs[i].offset + runs[i].bytes;
    const bool follows = runs[i].offset <= passed;
    const std::int64_t begin = follows ? passed : std::max(runs[i].offset, passed + kLeastPartBytes);
    if (runs[i].is_read || end - begin < least) continue;
    cut(layout.begins, passed, begin, part_bytes);
    const auto first = std::ssize(layout.begins);
    cut(layout.begins, begin, end, part_bytes);
    for (auto part = first; part < std::ssize(layout.begins); ++part) layout.copies.push_back({part, i});
    passed = end;
  }
  cut(layout.begins, passed, object_bytes, part_bytes);
  layout.begins.push_back(object_bytes);
  return layout;
}

}  // namespace

PartLayout layout_of_runs(std::int64_t object_bytes, std::int64_t part_bytes, std::span<const SourceRun> runs,
                          std::int64_t sent_bytes) {
  for (std::int64_t least = kLeastPartBytes; least <= object_bytes; least *= 2) {
    PartLayout layout = layout_of_long_runs(object_bytes, part_bytes, runs, sent_bytes, least);
    if (std::ssize(layout.begins) - 1 <= kMostPartsOfObject) return layout;
  }
  return even_layout(object_bytes, part_bytes);
}

}  // namespace shard
