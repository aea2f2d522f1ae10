/// \file
/// How ZeRO spreads parameters over flat buffers, one of each data-parallel rank. Pure arithmetic.
///
/// Source: deepspeed/runtime/zero/stage_1_and_2.py and stage3.py of 0.18.2.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace shard::deepspeed {

/// Elements of a parameter that follow one another in a rank's buffer.
struct FlatRun {
  std::int64_t rank = 0;
  std::int64_t begin = 0;  ///< Of the parameter, in row-major order.
  std::int64_t count = 0;
  std::int64_t first = 0;  ///< Of the rank's buffer.

  friend bool operator==(const FlatRun&, const FlatRun&) = default;
};

/// Stages 1 and 2: parameters one after the other, padded to a multiple of `alignment` x `ranks` elements, cut into
/// equal slices.
struct SlicedGroup {
  std::int64_t elements = 0;  ///< Of all parameters.
  std::int64_t slice = 0;     ///< Of each rank, with what pads the last ones.

  /// \pre numels are not negative; their sum was checked. \returns nothing where the slice does not fit 64 bits.
  static std::optional<SlicedGroup> of(std::int64_t elements, std::int64_t ranks, std::int64_t alignment);
  /// What of `rank`'s slice is not padding.
  std::int64_t real(std::int64_t rank) const;
  /// The runs of the parameter that begins at element `offset` of the group, by rank.
  std::vector<FlatRun> runs(std::int64_t offset, std::int64_t numel) const;
};

/// Stage 3: every rank holds a part of every parameter, all of this size, the last ones' padded.
std::int64_t part_of(std::int64_t numel, std::int64_t ranks);
/// The runs of a parameter whose part begins at `offset` of each rank's buffer, by rank.
std::vector<FlatRun> runs_in_parts(std::int64_t numel, std::int64_t ranks, std::int64_t offset);

}  // namespace shard::deepspeed
