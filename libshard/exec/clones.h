/// \file
/// Copies by reference, before the workers begin. Inside libshard/exec only.
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

/// Which elements of units are in place already.
class Clones {
 public:
  /// The parts of a box of a unit that are left to copy. Cost: log n in the unit's clones.
  template <class Each>
  void for_each_rest(const Unit& unit, const Box& box, const Each& each) const;

  std::map<std::int64_t, std::vector<std::pair<std::int64_t, std::int64_t>>> ranges;  ///< By Unit::first_tile; sorted.
};

/// Clones what it can: of lines of bytes without replicas the runs of 1 MiB and more that lie at the same place within
/// a block on both sides, in `tiles` only. A pair of files that refuses once is not asked again.
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
