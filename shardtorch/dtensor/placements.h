/// \file
/// Placements: the effect of one axis of a DeviceMesh on a tensor. Plain values.
///
/// libshard's place() (catalog/layouts/layout.h) has the arithmetic. Source:
/// torch/distributed/tensor/placement_types.py (torch 2.11).
#pragma once

#include <cstdint>
#include <functional>
#include <ostream>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "libshard/catalog/layouts/placement.h"
#include "shardtorch/sharded_tensor/collectives.h"

namespace shard::dtensor {

/// Every rank of the axis has the same elements.
struct Replicate {
  friend bool operator==(const Replicate&, const Replicate&) = default;
};

/// Sharded along `dim` as by torch.chunk, so the last ranks may have fewer elements, or none.
struct Shard {
  std::int64_t dim = 0;  ///< Negative values count from the end until a DTensor uses the placement.

  friend bool operator==(const Shard&, const Shard&) = default;
};

/// Python's _StridedShard: `split_factor` pieces, each of them sharded over the ranks of the axis. It is the placement
/// after an earlier sharding over a later axis (FSDP over tensor parallel).
struct StridedShard {
  std::int64_t dim = 0;
  std::int64_t split_factor = 1;

  friend bool operator==(const StridedShard&, const StridedShard&) = default;
};

/// Every rank of the axis has one term of each element. Combining all ranks' terms by `op` gives the element.
struct Partial {
  ReduceOp op = ReduceOp::kSum;

  friend bool operator==(const Partial&, const Partial&) = default;
};

using Placement = std::variant<Replicate, Shard, StridedShard, Partial>;
using Placements = std::vector<Placement>;  ///< One for each axis of a mesh, slowest first.

/// "R", "S(0)", "_S(0, 2)", "P(sum)".
std::string to_string(const Placement& placement);
std::string to_string(const Placements& placements);  ///< "[S(0), R]"

/// Normalizes placements for a tensor of `dims` dimensions on a mesh of `axes` axes: counts dimensions from the front.
/// \throws c10::ValueError  different numbers of placements and axes; a split factor below 1; Partial placements whose
///   operations do not commute (sum and mean do).
/// \throws c10::IndexError  the tensor has no such dimension.
Placements normalized(Placements placements, std::size_t axes, std::int64_t dims);

/// Replicate instead of each placement for which `is_replaced` holds.
Placements replicated_where(Placements placements, const std::function<bool(const Placement&)>& is_replaced);
/// Replicate instead of Partial.
Placements without_partials(Placements placements);
/// The placements of a gradient for these placements. Every rank needs the whole gradient of a sum, so Partial becomes
/// Replicate.
inline Placements placements_of_gradient(Placements placements) { return without_partials(std::move(placements)); }

/// Converts placements to the catalog's form. A Partial becomes like a Replicate, because each rank has a value for
/// each element.
std::vector<shard::Placement> in_catalog(const Placements& placements);
/// Converts from the catalog's form.
Placement from_catalog(const shard::Placement& placement);

bool is_partial(const Placement& placement);
bool is_replicate(const Placement& placement);
/// The dimension that a placement shards; -1 for others.
std::int64_t sharded_dim(const Placement& placement);

}  // namespace shard::dtensor
