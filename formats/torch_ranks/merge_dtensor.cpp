#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <vector>

#include "formats/torch_ranks/merge.h"
#include "libshard/core/box.h"

namespace shard::torch_ranks {

namespace {

/// The stored tensor for each coordinate of one mesh, row-major; kNoIndex if no file of it was read yet.
struct MeshParts {
  const DTensorValue* first;
  std::vector<std::uint32_t> stored;
};

std::string shown(const Sharding& sharding) {
  std::vector<std::string> axes, placements;
  for (const MeshAxis& axis : sharding.mesh)
    axes.push_back(fmt::format("{}{}{}", axis.name, axis.name.empty() ? "" : "=", axis.size));
  for (const Placement& placement : sharding.placements) placements.push_back(to_string(placement));
  return fmt::format("{} on a mesh of {}", fmt::join(placements, ","), fmt::join(axes, ","));
}

/// The columns of `values`, a matrix of `rows` rows, one after the other.
std::vector<std::int64_t> transposed(const std::vector<std::int64_t>& values, std::size_t rows) {
  const std::size_t columns = values.size() / rows;
  std::vector<std::int64_t> result;
  for (std::size_t i = 0; i < values.size(); ++i) result.push_back(values[i % rows * columns + i / rows]);
  return result;
}

class DTensorMerge {
 public:
  DTensorMerge(MergeContext& context, Holders holders)
      : context_(context), holders_(holders), first_(value_of(holders.front())) {}

  std::uint32_t run() {
    const std::uint32_t index = begin_tensor(context_, holders_.front(), first_.dtype, first_.shape);
    for (const Holder& holder : holders_) {
      check_same(holder);
      add_local(holder);
    }
    check_all_found();
    if (meshes_.size() > 1) check_replicas();
    if (cuts_slowest_first({first_.sharding, first_.order})) {
      context_.builder.tensor().sharding = context_.shardings.index_of(words());
    }
    return index;
  }

 private:
  static const DTensorValue& value_of(const Holder& holder) { return holder.file->dtensors[holder.leaf->item]; }

  void check_same(const Holder& holder) const {
    const DTensorValue& value = value_of(holder);
    check_whole(context_, holders_, holder, {value.shape, value.dtype}, {first_.shape, first_.dtype});
    if (value.sharding.mesh == first_.sharding.mesh && value.sharding.placements == first_.sharding.placements &&
        value.order == first_.order) {
      return;
    }
    throw differs_from_first(context_, holders_, holder, FindingKind::kMixedSave, "sharding")
        .expected(shown(first_.sharding))
        .found(shown(value.sharding));
  }

  /// Meshes of the same axes may have different ranks if they are parts of a larger mesh. No rank is on two.
  MeshParts& parts_of(const Holder& holder, const std::vector<RankPiece>& pieces) {
    const DTensorValue& value = value_of(holder);
    const auto [entry, is_new] = meshes_.try_emplace(value.sharding.ranks);
    if (!is_new) return entry->second;
    entry->second = {&value, std::vector<std::uint32_t>(pieces.size(), kNoIndex)};
    for (const RankPiece& piece : pieces) {
      if (ranks_.emplace(piece.rank, &value).second) continue;
      throw contradiction(context_, holder, FindingKind::kMixedSave,
                          fmt::format("rank {} is also on the mesh of a different file's part of it", piece.rank))
          .because("the files come from different saves");
    }
    return entry->second;
  }

  void add_local(const Holder& holder) {
    const DTensorValue& value = value_of(holder);
    if (value.coordinate.size() != value.sharding.mesh.size()) return;  // This rank is not on the mesh.
    const std::vector<RankPiece>& pieces = context_.shardings.pieces(value.shape, {value.sharding, value.order});
    MeshParts& parts = parts_of(holder, pieces);
    const std::size_t index = index_on_mesh(value.sharding.mesh, value.coordinate);
    const RankPiece& piece = pieces[index];
    const torch_save::TensorView view = local_view(context_, holder, *value.local, value.dtype, piece.local_sizes);
    parts.stored[index] = add_stored(context_, holder, view);
    add_pieces(context_, piece, parts.stored[index]);
  }

  void check_all_found() {
    if (meshes_.empty())
      throw contradiction(context_, holders_[0], FindingKind::kGap, "no file's rank is on the tensor's mesh");
    for (const auto& [ranks, parts] : meshes_) {
      const auto absent = std::ranges::find(parts.stored, kNoIndex);
      if (absent == parts.stored.end()) continue;
      const std::int64_t index = absent - parts.stored.begin();
      const std::int64_t rank = ranks.empty() ? index : ranks[static_cast<std::size_t>(index)];
      throw contradiction(context_, holders_[0], FindingKind::kGap,
                          fmt::format("rank {}'s file lacks the tensor", rank))
          .because(fmt::format("the mesh in rank {}'s file has a part of it there", holders_[0].rank()));
    }
  }

  /// Checks that the parts on several meshes are equal, because no placement guarantees it.
  void check_replicas() const {
    const MeshParts& one = meshes_.begin()->second;
    for (auto other = std::next(meshes_.begin()); other != meshes_.end(); ++other) {
      for (std::size_t i = 0; i < one.stored.size(); ++i) {
        const StoredTensor &a = context_.catalog.stored[one.stored[i]],
                           &b = context_.catalog.stored[other->second.stored[i]];
        if (is_equal(context_.files, context_.catalog, a, b)) continue;
        throw contradiction(context_, holders_[0], FindingKind::kReplicaMismatch,
                            fmt::format("the meshes of rank {} and of rank {} have different values", a.rank, b.rank))
            .because("each mesh has the whole tensor, and shardctl does not choose one");
      }
    }
  }

  /// Joins several meshes to one, with an additional axis along which they repeat one another. This axis is the fastest
  /// if the ranks count up along it, as on slices of a larger mesh, otherwise the slowest.
  Sharding words() const {
    Sharding sharding = first_.sharding;
    if (meshes_.size() == 1) return sharding;
    sharding.ranks.clear();
    for (const auto& [key, parts] : meshes_)
      std::ranges::copy(mesh_ranks(parts.first->sharding), std::back_inserter(sharding.ranks));
    const std::vector<std::int64_t> across = transposed(sharding.ranks, meshes_.size());
    const bool is_fastest = is_counting(across);
    if (is_fastest || is_counting(sharding.ranks)) sharding.ranks.clear();
    const bool is_named = has_axis_names(sharding.mesh);
    const std::ptrdiff_t at = is_fastest ? std::ssize(sharding.mesh) : 0;
    sharding.mesh.insert(sharding.mesh.begin() + at, {is_named ? "replica" : "", std::ssize(meshes_)});
    sharding.placements.insert(sharding.placements.begin() + at, Placement{Placement::kReplicate});
    return sharding;
  }

  MergeContext& context_;
  Holders holders_;
  const DTensorValue& first_;
  std::map<std::vector<std::int64_t>, MeshParts> meshes_;  ///< By their ranks.
  std::map<std::int64_t, const DTensorValue*> ranks_;      ///< The ranks of all meshes.
};

}  // namespace

std::uint32_t merge_dtensor(MergeContext& context, Holders holders) { return DTensorMerge(context, holders).run(); }

}  // namespace shard::torch_ranks
