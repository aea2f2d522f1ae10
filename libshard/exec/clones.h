/// \file Copies by reference (reflinks), before the workers begin. Inside libshard/exec only.
#pragma once

#include <algorithm>
#include <map>
#include <span>
#include <utility>
#include <vector>

#include "libshard/exec/execute.h"
#include "libshard/io/file_writer.h"
#include "libshard/io/local_disk.h"

namespace shard {

/// Records the elements of units that are already cloned.
class Clones {
 public:
  /// Calls `each` with the parts of a unit's box that still must be copied. Cost: log n in the unit's clones.
  template <class Each>
  void for_each_rest(const Unit& unit, const Box& box, const Each& each) const;

  /// The cloned ranges of elements, sorted, by Unit::first_tile.
  std::map<std::int64_t, std::vector<std::pair<std::int64_t, std::int64_t>>> ranges;
};

/// Clones runs of at least 1 MiB in lines of bytes without replicas, within `tiles`. The runs must have the same offset
/// within a block on both sides. If the file system refuses a pair of files once, the pair is not tried again.
Clones clone_runs(const Plan& plan, const TileRange& tiles, const Catalog& source, const Reader& reader,
                  const Catalog& target, std::span<FileWriter* const> files, LocalDisk& reflink_disk,
                  Progress& progress);

template <class Each>
void Clones::for_each_rest(const Unit& unit, const Box& box, const Each& each) const {
  const auto found = ranges.find(unit.first_tile);
  if (found == ranges.end()) return each(box);
  const std::int64_t end = box.offset[0] + box.size[0];
  std::int64_t begin = box.offset[0];
  Box rest = box;
  const auto copy_until = [&](std::int64_t until) {
    rest.offset[0] = begin;
    rest.size[0] = until - begin;
    if (until > begin) each(rest);
  };
  auto clone = std::upper_bound(found->second.begin(), found->second.end(), begin,
                                [](std::int64_t value, const auto& range) { return value < range.second; });
  for (; clone != found->second.end() && clone->first < end; ++clone) {
    copy_until(clone->first);
    begin = clone->second;
  }
  copy_until(end);
}

}  // namespace shard
