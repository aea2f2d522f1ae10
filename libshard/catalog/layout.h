/// \file
/// Layout: defines the boxes of each tensor and the ranks that hold them. Pure.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "libshard/catalog/placement.h"
#include "libshard/core/box.h"

namespace shard {

struct Catalog;

/// Every tensor cut along `dim` into `ranks` pieces of ceil(n / ranks), as torch.chunk.
struct RanksLayout {
  std::int64_t ranks = 1;
  int dim = 0;
};
/// Indices of the rules that match a name, rising. Cost: one pass over the name where a file chose the rules.
using RuleMatcher = std::function<std::vector<std::size_t>(std::string_view name)>;
/// For a layout of one rule for all names.
inline std::vector<std::size_t> match_first_rule(std::string_view) { return {0}; }

/// A mesh of ranks: the first rule that matches a name says its placements.
struct MeshLayout {
  struct Rule {
    std::string source;                 ///< The rule as its author wrote it, for messages.
    std::vector<Placement> placements;  ///< One per axis, slowest first.
    std::vector<std::size_t> order;     ///< Axes in the order of cutting; empty: slowest first, as torch.
  };
  std::vector<MeshAxis> mesh;
  std::vector<Rule> rules;  ///< No match: replicated on all axes.
  RuleMatcher matching;     ///< Set where there are rules.
  std::string file_path{};  ///< A layout document's files.path template, or empty.

  /// \returns matching(name); nothing where there are no rules.
  std::vector<std::size_t> rules_for(std::string_view name) const {
    return rules.empty() ? std::vector<std::size_t>() : matching(name);
  }
};
/// The boxes that another checkpoint has. The catalog must outlive the layout.
struct LikeLayout {
  const Catalog* like;
};
/// Whole tensors in N files balanced by bytes, in name order.
struct ShardsLayout {
  std::int64_t shards;
};
/// Whole tensors, greedily, up to `bytes` per file.
struct SizeLayout {
  std::int64_t bytes;
};
/// Keeps the source's boxes and ranks (for `convert` to a format that supports them).
struct KeepLayout {};
/// Whole tensors in one file.
struct WholeLayout {};

using Layout = std::variant<WholeLayout, KeepLayout, RanksLayout, MeshLayout, LikeLayout, ShardsLayout, SizeLayout>;

/// One rank's part of one tensor, in local element order.
struct RankPiece {
  std::int64_t rank = 0;
  std::vector<std::int64_t> local_sizes;  ///< The local tensor's shape; may hold zeros.
  std::vector<Box> boxes;                 ///< In the tensor; concatenated they are the local tensor. None when empty.
  std::vector<std::vector<std::int64_t>> local_offsets;  ///< Each box's in the local tensor.
  bool replica = false;                                  ///< A lower rank holds the same.
};

/// The pieces of a tensor of `shape` on every rank, by the placements of a mesh (rank = row-major index).
/// A placement on a dimension that the tensor does not have is treated as R. Arithmetic of torch's Shard and
/// _StridedShard (torch/distributed/tensor/placement_types.py), and of cut_range. `order` is that of MeshLayout::Rule.
/// \throws Error kInvalidArgument  a dimension that does not divide evenly, or that widths do not make up.
/// \throws Error kUnsupported  placements that cut one dimension into more than 2^20 runs, or the tensor into more than
///   2^20 boxes.
std::vector<RankPiece> place(std::span<const std::int64_t> shape, std::span<const MeshAxis> mesh,
                             std::span<const Placement> placements, std::span<const std::size_t> order = {});

}  // namespace shard
