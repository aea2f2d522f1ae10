/// \file
/// Placements: what one axis of a DeviceMesh does to a tensor. Plain values.
///
/// The arithmetic of cutting is libshard's place() (catalog/layout.h).
/// Source: torch/distributed/tensor/placement_types.py (torch 2.11).
#pragma once

#include <cstdint>
#include <ostream>
#include <string>
#include <variant>
#include <vector>

#include "libshard/catalog/placement.h"
#include "shardtorch/sharded_tensor/collectives.h"

namespace shard::dtensor {

/// Every rank of the axis holds the same.
struct Replicate {
  friend bool operator==(const Replicate&, const Replicate&) = default;
};

/// Cut along `dim` as torch.chunk cuts: the last ranks may hold less, or nothing.
struct Shard {
  std::int64_t dim = 0;  ///< Negative ones count from the end until a DTensor has it.

  friend bool operator==(const Shard&, const Shard&) = default;
};

/// Python's _StridedShard: `split_factor` pieces, each of them cut over the ranks of the axis. What remains of a cut
/// over a later axis that was made first (FSDP over tensor parallel).
struct StridedShard {
  std::int64_t dim = 0;
  std::int64_t split_factor = 1;

  friend bool operator==(const StridedShard&, const StridedShard&) = default;
};

/// Every rank of the axis holds a term of each element; `op` over all ranks makes the element.
struct Partial {
  ReduceOp op = ReduceOp::kSum;

  friend bool operator==(const Partial&, const Partial&) = default;
};

using Placement = std::variant<Replicate, Shard, StridedShard, Partial>;
using Placements = std::vector<Placement>;  ///< One for each axis of a mesh, slowest first.

/// "R", "S(0)", "_S(0, 2)", "P(sum)".
std::string to_string(const Placement& placement);
std::string to_string(const Placements& placements);  ///< "[S(0), R]"

/// For a tensor of `dims` dimensions on a mesh of `axes` axes: dimensions counted from the front.
/// \throws c10::ValueError  another number of placements than axes; a split factor below 1; Partial of operations that
/// do
///   not commute with one another (a sum and a mean do).
/// \throws c10::IndexError  a dimension that the tensor lacks.
Placements normalized(Placements placements, std::size_t axes, std::int64_t dims);

/// Those of the gradient of a tensor with these: Replicate for Partial, the others as they are.
Placements placements_of_gradient(Placements placements);

/// As the catalog has them. A Partial holds what a Replicate holds: a value for each element.
std::vector<shard::Placement> in_catalog(const Placements& placements);
/// The way back.
Placement from_catalog(const shard::Placement& placement);

bool is_partial(const Placement& placement);

}  // namespace shard::dtensor
