#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "formats/torch_ranks/merge.h"
#include "libshard/core/box.h"
#include "libshard/core/checked.h"

namespace shard::torch_ranks {

namespace {

class SliceMerge {
 public:
  SliceMerge(MergeContext& context, Holders holders, const MeshLayout& layout, const MeshLayout::Rule& rule)
      : context_(context), holders_(holders), order_(rule.order), dims_(holders.front().view().shape.size()) {
    sharding_.mesh = layout.mesh;
    for (Placement placement : rule.placements) {
      if (placement.dim < 0) placement.dim += dims_;
      const bool is_cut = placement.kind != Placement::kReplicate && placement.dim >= 0 && placement.dim < dims_;
      sharding_.placements.push_back(is_cut ? placement : Placement());
    }
  }

  void check() {
    for (const Holder& holder : holders_) check_kind(holder);
    const Dims shape = whole_shape();
    const std::vector<RankPiece>& pieces = pieces_of(shape, {sharding_, order_});
    for (std::size_t rank = 0; rank < pieces.size(); ++rank) check_size(holders_[rank], shape, pieces[rank]);
  }

  std::uint32_t run() {
    for (const Holder& holder : holders_) check_kind(holder);
    const Cut cut{sharding_, order_};
    const Dims shape = whole_shape();
    const std::uint32_t index = begin_tensor(context_, holders_.front(), holders_.front().view().dtype, shape);
    const std::vector<RankPiece>& pieces = pieces_of(shape, cut);
    for (std::size_t rank = 0; rank < pieces.size(); ++rank) add(holders_[rank], shape, pieces[rank]);
    std::ranges::transform(sharding_.placements, sharding_.placements.begin(), in_dtensor_terms);
    if (cuts_slowest_first(cut)) context_.builder.tensor().sharding = context_.shardings.index_of(sharding_);
    return index;
  }

 private:
  void check_kind(const Holder& holder) const {
    const torch_save::TensorView &view = holder.view(), &first = holders_.front().view();
    if (view.shape.size() != dims_) {
      throw contradiction(context_, holder, FindingKind::kShapeMismatch,
                          "the slice has a different number of dimensions from others")
          .expected(to_string(first.shape))
          .found(to_string(view.shape));
    }
    if (view.dtype != first.dtype) {
      throw contradiction(context_, holder, FindingKind::kDtypeMismatch, "the slice has a different dtype from others")
          .expected(dtype_name(first.dtype))
          .found(dtype_name(view.dtype));
    }
  }

  /// The part of the whole tensor on each rank. \throws Error kCorruption  the layout cannot shard that shape
  const std::vector<RankPiece>& pieces_of(Dims shape, const Cut& cut) {
    try {
      return context_.shardings.pieces(shape, cut);
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kInvalidArgument) throw;
      throw contradiction(context_, holders_.front(), FindingKind::kShapeMismatch,
                          fmt::format("the slices do not fit the layout: {}", error.what()))
          .expected(error.expected())
          .found(error.found());
    }
  }

  /// The whole shape: along each dimension, the sum over the ranks that differ only on the axes that shard it.
  Dims whole_shape() const {
    std::vector<std::int64_t> shape;
    for (int d = 0; d < dims_; ++d) {
      std::int64_t size = 0;
      for (std::size_t rank = 0; rank < holders_.size(); ++rank) {
        if (is_first_but_for(d, rank)) size = checked_add(size, holders_[rank].view().shape[d]);
      }
      shape.push_back(size);
    }
    return context_.catalog.arena->dims(shape);
  }

  /// True if the rank's coordinate is 0 on every axis that does not shard dimension `d`.
  bool is_first_but_for(int d, std::size_t rank) const {
    // Ranks are numbered row-major on the mesh, so the coordinates are the digits of the rank, the last axis first.
    for (std::size_t axis = sharding_.mesh.size(); axis-- > 0;) {
      const auto size = static_cast<std::size_t>(sharding_.mesh[axis].size);
      const Placement& placement = sharding_.placements[axis];
      const bool cuts = placement.kind != Placement::kReplicate && placement.dim == d;
      if (!cuts && rank % size != 0) return false;
      rank /= size;
    }
    return true;
  }

  void check_size(const Holder& holder, Dims shape, const RankPiece& piece) const {
    const torch_save::TensorView& view = holder.view();
    if (!std::ranges::equal(view.shape, piece.local_sizes)) {
      throw contradiction(
          context_, holder, FindingKind::kShapeMismatch,
          fmt::format("the slice of rank {} does not have the size that the layout defines", holder.rank()))
          .because(fmt::format("all slices together are {}, which the layout shards differently", to_string(shape)))
          .expected(to_string(piece.local_sizes))
          .found(to_string(view.shape));
    }
  }

  void add(const Holder& holder, Dims shape, const RankPiece& piece) {
    check_size(holder, shape, piece);
    add_pieces(context_, piece, add_stored(context_, holder, holder.view()));
  }

  MergeContext& context_;
  Holders holders_;
  const std::vector<std::size_t>& order_;
  int dims_;
  Sharding sharding_;
};

}  // namespace

std::uint32_t merge_slices(MergeContext& context, Holders holders, const MeshLayout& layout,
                           const MeshLayout::Rule& rule) {
  return SliceMerge(context, holders, layout, rule).run();
}

void check_slices(MergeContext& context, Holders holders, const MeshLayout& layout, const MeshLayout::Rule& rule) {
  SliceMerge(context, holders, layout, rule).check();
}

}  // namespace shard::torch_ranks
