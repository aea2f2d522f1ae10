#include "libshard/core/nearest.h"

#include <algorithm>
#include <cstdlib>
#include <vector>

namespace shard {

int edit_distance(std::string_view a, std::string_view b, int limit) {
  const int rows = static_cast<int>(a.size()), columns = static_cast<int>(b.size());
  if (std::abs(rows - columns) > limit) return limit + 1;
  const auto width = static_cast<std::size_t>(columns) + 1;
  std::vector<int> before(width), last(width), row(width);
  for (std::size_t j = 0; j < width; ++j) last[j] = static_cast<int>(j);
  for (std::size_t i = 1; i <= a.size(); ++i) {
    row[0] = static_cast<int>(i);
    for (std::size_t j = 1; j <= b.size(); ++j) {
      row[j] = std::min({last[j] + 1, row[j - 1] + 1, last[j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1)});
      const bool swapped = i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1];
      if (swapped) row[j] = std::min(row[j], before[j - 2] + 1);
    }
    std::swap(before, last);
    std::swap(last, row);
  }
  return std::min(last[width - 1], limit + 1);
}

std::string nearest(std::string_view typed, std::span<const std::string_view> words) {
  const int limit = std::min(3, static_cast<int>(typed.size() + 2) / 3);
  int best = limit + 1;
  std::string_view found;
  for (const std::string_view word : words) {
    const int distance = edit_distance(typed, word, limit);
    if (distance < best) {
      best = distance;
      found = word;
    }
  }
  return std::string(found);
}

}  // namespace shard
