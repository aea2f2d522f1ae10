#include "libshard/map/arithmetic/dim_runs.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "libshard/core/checked.h"
#include "libshard/core/error.h"
#include "libshard/map/documents/wrong.h"

namespace shard {

namespace {

constexpr std::size_t kMaxRuns = 1 << 20;

void add_run(std::vector<DimRun>& runs, const DimRun& run, const std::string& where) {
  if (runs.size() == kMaxRuns) {
    throw Error(ErrorCode::kUnsupported,
                fmt::format("{} divides one dimension into more than {} runs", where, kMaxRuns));
  }
  runs.push_back(run);
}

/// The part of a run whose local positions are in `range`, with positions relative to its begin. Its length is 0 if
/// there is none.
DimRun part_in(const DimRun& run, DimRange range) {
  // Position i of the run is at local + i * step. `first` and `last`: the smallest i at or after each end.
  const std::int64_t first =
      std::max(std::int64_t{0}, ceil_div(std::max(std::int64_t{0}, range.begin - run.local), run.step));
  const std::int64_t end = range.begin + range.size;
  const std::int64_t last = std::min(run.length, end <= run.local ? 0 : ceil_div(end - run.local, run.step));
  return {run.segment, run.logical + first, run.local + first * run.step - range.begin, run.step,
          std::max(std::int64_t{0}, last - first)};
}

}  // namespace

std::vector<DimRun> interleaved_runs(std::span<const std::int64_t> sizes, std::int64_t groups, DimRange range,
                                     const std::string& where) {
  if (groups < 1) throw wrong(fmt::format("{}: interleave is not a number of groups", where)).found(groups);
  const std::int64_t group_size = std::accumulate(sizes.begin(), sizes.end(), std::int64_t{0}) / groups;
  std::vector<DimRun> runs;
  std::int64_t before = 0;
  for (std::size_t segment = 0; segment < sizes.size(); ++segment) {
    if (sizes[segment] % groups != 0) {
      throw wrong(fmt::format("{} cannot interleave a segment of {} in {} groups", where, sizes[segment], groups))
          .expected(groups)
          .found(sizes[segment]);
    }
    const std::int64_t width = sizes[segment] / groups;
    // If a group has one element of the segment, all groups together are one strided run.
    if (width == 1) {
      const DimRun run = part_in({segment, 0, before, group_size, groups}, range);
      if (run.length > 0) add_run(runs, run, where);
    } else if (width > 0) {
      // Group g occupies [g * group_size + before, ... + width). The loop visits the groups that overlap the range.
      const std::int64_t first =
          std::max(std::int64_t{0}, (range.begin - before - width) / std::max<std::int64_t>(group_size, 1));
      for (std::int64_t g = first; g < groups && g * group_size + before < range.begin + range.size; ++g) {
        const DimRun run = part_in({segment, g * width, g * group_size + before, 1, width}, range);
        if (run.length > 0) add_run(runs, run, where);
      }
    }
    before += width;
  }
  return runs;
}

std::vector<DimRun> within_rows(std::span<const DimRun> runs, std::int64_t size, const std::string& where) {
  std::vector<DimRun> result;
  for (DimRun run : runs) {
    while (run.length > 0) {
      DimRun part = run;
      part.length = std::min(run.length, ceil_div(size - run.local % size, run.step));
      add_run(result, part, where);
      run.logical += part.length;
      run.local += part.length * run.step;
      run.length -= part.length;
    }
  }
  return result;
}

void repeat_run(std::vector<DimRun>& runs, const DimRun& last, DimRange padding, const std::string& where) {
  const auto found = std::ranges::find_if(runs, [&](const DimRun& run) {
    return run.segment == last.segment && run.logical + run.length - 1 == last.logical;
  });
  if (found != runs.end() && found->length > 1) {
    --found->length;
    add_run(runs, {last.segment, last.logical, found->local + found->length * found->step, 1, 1}, where);
  }
  for (std::int64_t i = 0; i < padding.size; ++i) {
    add_run(runs, {last.segment, last.logical, padding.begin + i, 1, 1}, where);
  }
}

std::vector<DimRun> without_rotary(std::span<const DimRun> runs, MapPermute::Rotary rotary, std::int64_t rows,
                                   std::int64_t heads, const std::string& where) {
  if (heads < 1 || rows % heads != 0 || rows / heads % 2 != 0) {
    throw wrong(fmt::format("{} cannot permute {} rows as {} heads of two halves", where, rows, heads))
        .because("each head must have an even number of rows");
  }
  const std::int64_t head = rows / heads, half = head / 2;
  std::vector<DimRun> result;
  for (const DimRun& run : runs) {
    const std::int64_t begin = run.logical, end = run.logical + run.length;  // Permuted positions.
    const auto local = [&](std::int64_t position) { return run.local + (position - begin) * run.step; };
    for (std::int64_t h = head == 0 ? heads : begin / head; h < heads && h * head < end; ++h) {
      const std::int64_t base = h * head, low = std::max(begin, base) - base, high = std::min(end, base + head) - base;
      if (rotary == MapPermute::Rotary::kHalfToPairs) {
        // Permuted position 2k + j was j * half + k. For each j, the k in range are one run of step 2.
        for (std::int64_t j = 0; j < 2; ++j) {
          const std::int64_t first = (low - j + 1) / 2, last = (high - j + 1) / 2;
          if (first >= last) continue;
          add_run(result,
                  {run.segment, base + j * half + first, local(base + 2 * first + j), 2 * run.step, last - first},
                  where);
        }
        continue;
      }
      // Permuted position j * half + k was 2k + j. The two neighbours 2k and 2k + 1 are one run if both are in range.
      for (std::int64_t k = std::max(low - half, std::int64_t{0}); k < half; ++k) {
        const bool has_first = k >= low && k < high, has_second = half + k >= low && half + k < high;
        if (!has_first && !has_second && (k >= low || low >= high)) break;
        if (!has_first && !has_second) {
          k = low - 1;  // Skips the gap between its positions in the two halves.
          continue;
        }
        const std::int64_t j = has_first ? 0 : 1;
        add_run(result,
                {run.segment, base + 2 * k + j, local(base + j * half + k), half * run.step,
                 has_first && has_second ? 2 : 1},
                where);
      }
    }
  }
  return result;
}

}  // namespace shard
