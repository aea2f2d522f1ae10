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

#include "libshard/catalog/layouts/placement.h"
#include "libshard/core/box.h"

namespace shard {

struct Catalog;

/// Every tensor is split along `dim` into `ranks` pieces of ceil(n / ranks), as in torch.chunk.
struct RanksLayout {
  std::int64_t ranks = 1;
  int dim = 0;
};
/// Returns the indices of the rules that match a name, in rising order. Cost: one pass over the name if the rules come
/// from a file.
using RuleMatcher = std::function<std::vector<std::size_t>(std::string_view name)>;
/// The matcher of a layout with one rule for all names.
inline std::vector<std::size_t> match_first_rule(std::string_view) { return {0}; }

/// A mesh of ranks. The first rule that matches a name defines its placements.
struct MeshLayout {
  struct Rule {
    std::string source;                 ///< The rule as its author wrote it, for messages.
    std::vector<Placement> placements;  ///< One per axis, slowest axis first.
    std::vector<std::size_t> order;     ///< The axes in the order of cutting. Empty: slowest first, as in torch.
  };
  std::vector<MeshAxis> mesh;
  std::vector<Rule> rules;  ///< A name without a match is replicated on all axes.
  RuleMatcher matching;     ///< Set if there are rules.
  std::string file_path{};  ///< A layout document's files.path template, or empty.

  /// \returns matching(name), or nothing if there are no rules.
  std::vector<std::size_t> rules_for(std::string_view name) const {
    return rules.empty() ? std::vector<std::size_t>() : matching(name);
  }
};
/// The same boxes as in a different checkpoint. The catalog must outlive the layout.
struct LikeLayout {
  const Catalog* like;
  std::string path{};  ///< Path of that checkpoint, for errors.
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
/// True for layouts that may shard tensors.
bool cuts_tensors(const Layout& layout);

/// One rank's part of one tensor, in local element order.
struct RankPiece {
  std::int64_t rank = 0;
  std::vector<std::int64_t> local_sizes;  ///< The local tensor's shape; may contain zeros.
  std::vector<Box> boxes;                 ///< Boxes in the tensor. Together they are the local tensor. May be empty.
  std::vector<std::vector<std::int64_t>> local_offsets;  ///< The position of each box in the local tensor.
  bool replica = false;                                  ///< Whether a lower rank has the same piece.
};

/// The pieces of a tensor of `shape` on every rank, by the placements of a mesh (rank = row-major index). A placement
/// on a dimension that the tensor does not have is treated as R. The arithmetic is that of torch's Shard and
/// _StridedShard (torch/distributed/tensor/placement_types.py), and of cut_range. `order`: see MeshLayout::Rule.
/// \throws Error kInvalidArgument  a dimension that does not divide evenly, or widths with a different sum.
/// \throws Error kUnsupported  placements that split one dimension into more than 2^20 runs, or the tensor into more
///   than 2^20 boxes.
std::vector<RankPiece> place(std::span<const std::int64_t> shape, std::span<const MeshAxis> mesh,
                             std::span<const Placement> placements, std::span<const std::size_t> order = {});
/// The piece of one rank, without those of the others. Only its own boxes count towards the limit. \pre `rank` is on
/// the mesh
/// \throws  as place. Cost: independent of the number of ranks.
RankPiece place_rank(std::span<const std::int64_t> shape, std::span<const MeshAxis> mesh,
                     std::span<const Placement> placements, std::int64_t rank);

}  // namespace shard
