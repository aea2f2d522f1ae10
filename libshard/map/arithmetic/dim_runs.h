/// \file
/// Runs of one dimension of a stored tensor. Inside libshard/map only.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "libshard/catalog/layouts/split.h"
#include "libshard/map/documents/document.h"

namespace shard {

/// See rule_parts.h.
struct DimRun {
  std::size_t segment = 0;
  std::int64_t logical = 0, local = 0, step = 1, length = 0;

  friend bool operator==(const DimRun&, const DimRun&) = default;
};

/// The runs of concatenated segments of `sizes` in `groups` groups, within `range`. Group g consists of the g-th part
/// of each segment. Local positions are relative to the begin of `range`. If groups have one element per segment, each
/// segment is one strided run.
/// \throws Error kInvalidArgument  the number of groups does not divide a size; kUnsupported  more than 2^20 runs.
std::vector<DimRun> interleaved_runs(std::span<const std::int64_t> sizes, std::int64_t groups, DimRange range,
                                     const std::string& where);

/// Divides runs, so that the local positions of each one are in one row of a dimension that is stored as rows of
/// `size`. \throws Error kUnsupported  more than 2^20 runs.
std::vector<DimRun> within_rows(std::span<const DimRun> runs, std::int64_t size, const std::string& where);

/// Makes the positions of `padding` repeat the position of `last`. If that position is part of a longer run, it becomes
/// a separate run first.
/// \throws Error kUnsupported  more than 2^20 runs.
void repeat_run(std::vector<DimRun>& runs, const DimRun& last, DimRange padding, const std::string& where);

/// Undoes a rotary permutation. `runs` use positions of a permuted dimension of `rows`, in `heads` heads of halves or
/// pairs. The result uses the positions before the permutation.
/// \throws Error kInvalidArgument  the heads do not divide the dimension evenly; kUnsupported  more than 2^20 runs.
std::vector<DimRun> without_rotary(std::span<const DimRun> runs, MapPermute::Rotary rotary, std::int64_t rows,
                                   std::int64_t heads, const std::string& where);

}  // namespace shard
