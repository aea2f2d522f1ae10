#include "formats/deepspeed/partition.h"

#include <algorithm>

#include "libshard/catalog/flat_run.h"
#include "libshard/core/checked.h"

namespace shard::deepspeed {

std::optional<SlicedGroup> SlicedGroup::of(std::int64_t elements, std::int64_t ranks, std::int64_t alignment) {
  std::int64_t unit = 0, padded = 0;
  if (__builtin_mul_overflow(ranks, alignment, &unit)) return std::nullopt;
  const std::int64_t units = ceil_div(elements, unit);
  if (__builtin_mul_overflow(units, unit, &padded)) return std::nullopt;
  return SlicedGroup{elements, padded / ranks};
}

std::int64_t SlicedGroup::real(std::int64_t rank) const {
  return slice == 0 ? 0 : std::clamp<std::int64_t>(elements - rank * slice, 0, slice);
}

std::vector<FlatRun> SlicedGroup::runs(std::int64_t offset, std::int64_t numel) const {
  std::vector<FlatRun> all;
  for_each_slice_of_run(offset, numel, slice,
                        [&](std::int64_t rank, std::int64_t first, std::int64_t begin, std::int64_t count) {
                          all.push_back({rank, begin, count, first});
                        });
  return all;
}

std::int64_t part_of(std::int64_t numel, std::int64_t ranks) { return ceil_div(numel, ranks); }

std::vector<FlatRun> runs_in_parts(std::int64_t numel, std::int64_t ranks, std::int64_t offset) {
  const std::int64_t part = part_of(numel, ranks);
  std::vector<FlatRun> all;
  for (std::int64_t begin = 0, rank = 0; begin < numel; begin += part, ++rank) {
    all.push_back({rank, begin, std::min(part, numel - begin), offset});
  }
  return all;
}

}  // namespace shard::deepspeed
