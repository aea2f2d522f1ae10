#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "formats/torch_ranks/merge.h"
#include "libshard/catalog/layouts/placement.h"
#include "libshard/core/box.h"

namespace shard::torch_ranks {

namespace {

/// Offsets and sizes of a shard, which identify it within its tensor.
struct ShardExtent {
  Dims offsets, sizes;
};

bool operator<(const ShardExtent& a, const ShardExtent& b) {
  const auto order =
      std::lexicographical_compare_three_way(a.offsets.begin(), a.offsets.end(), b.offsets.begin(), b.offsets.end());
  if (order != 0) return order < 0;
  return std::ranges::lexicographical_compare(a.sizes, b.sizes);
}

std::string box_text(const ShardBox& box) {
  return fmt::format("{} at {}", shard::to_string(box.sizes), shard::to_string(box.offsets));
}

class ShardedTensorMerge {
 public:
  ShardedTensorMerge(MergeContext& context, Holders holders)
      : context_(context), holders_(holders), first_(value_of(holders.front())) {
    for (const ShardBox& box : first_.all) stated_.push_back({box.offsets, box.sizes});
    std::ranges::sort(stated_, std::less<>());
  }

  std::uint32_t run() {
    const std::uint32_t index = begin_tensor(context_, holders_.front(), first_.dtype, first_.shape);
    for (const Holder& holder : holders_) {
      check_metadata(holder);
      for (const LocalShard& local : value_of(holder).local) add_local(holder, local);
    }
    check_all_found();
    if (first_.spec.is_chunk) context_.builder.tensor().sharding = sharding_of_spec();
    return index;
  }

 private:
  static const ShardedTensorValue& value_of(const Holder& holder) { return holder.file->sharded[holder.leaf->item]; }

  /// False for process groups of a part of the world, which number their ranks differently.
  static bool is_of_world(const ShardedTensorValue& value) {
    return value.group.local_world_size == value.group.world_size;
  }

  Error differs(const Holder& holder, FindingKind kind, std::string_view what) const {
    return differs_from_first(context_, holders_, holder, kind, what);
  }

  void check_metadata(const Holder& holder) const {
    const ShardedTensorValue& value = value_of(holder);
    check_whole(context_, holders_, holder, {value.shape, value.dtype}, {first_.shape, first_.dtype});
    if (value.all.size() != first_.all.size()) {
      throw differs(holder, FindingKind::kMixedSave, "number of shards")
          .expected(std::ssize(first_.all))
          .found(std::ssize(value.all));
    }
    const bool compare_ranks = is_of_world(value) && is_of_world(first_);
    for (std::size_t i = 0; i < value.all.size(); ++i) {
      const ShardBox &a = first_.all[i], &b = value.all[i];
      if (a.offsets == b.offsets && a.sizes == b.sizes && (!compare_ranks || a.rank == b.rank)) continue;
      throw differs(holder, FindingKind::kMixedSave, fmt::format("position of shard {}", i))
          .expected(fmt::format("{}, rank {}", box_text(a), a.rank))
          .found(fmt::format("{}, rank {}", box_text(b), b.rank));
    }
    const bool same_spec = value.spec.is_chunk == first_.spec.is_chunk && value.spec.dim == first_.spec.dim;
    if (!same_spec || (compare_ranks && value.spec.placements != first_.spec.placements)) {
      throw differs(holder, FindingKind::kMixedSave, "sharding spec");
    }
  }

  void add_local(const Holder& holder, const LocalShard& local) {
    const ShardExtent box{local.box.offsets, local.box.sizes};
    if (!std::ranges::binary_search(stated_, box, std::less<>())) {
      throw contradiction(context_, holder, FindingKind::kMixedSave,
                          fmt::format("the metadata names no shard of {}", box_text(local.box)));
    }
    if (is_of_world(value_of(holder)) && local.box.rank >= 0 && local.box.rank != holder.rank()) {
      throw contradiction(context_, holder, FindingKind::kRankMismatch,
                          fmt::format("the shard of {} is on a different rank", box_text(local.box)))
          .expected(holder.rank())
          .found(local.box.rank);
    }
    const torch_save::TensorView view = local_view(context_, holder, *local.tensor, first_.dtype, local.box.sizes);
    const std::uint32_t stored = add_stored(context_, holder, view);
    context_.builder.add_chunk({local.box.offsets, local.box.sizes, view.strides, view.first, stored});
    found_.push_back(box);
  }

  /// Checks that every nonempty shard in the metadata is in some file.
  void check_all_found() {
    std::ranges::sort(found_, std::less<>());
    for (const ShardBox& box : first_.all) {
      const ShardExtent wanted{box.offsets, box.sizes};
      if (is_empty(box.sizes) || std::ranges::binary_search(found_, wanted, std::less<>())) continue;
      throw contradiction(context_, holders_.front(), FindingKind::kGap,
                          fmt::format("no file contains the shard of {}", box_text(box)))
          .because(box.rank < 0 ? "every rank's file lists it"
                                : fmt::format("every rank's file lists it as rank {}'s", box.rank));
    }
  }

  /// The sharding of a ChunkShardingSpec over ranks of the world, if its boxes are where the sharding puts them.
  std::uint32_t sharding_of_spec() {
    const std::vector<std::string_view>& placements = first_.spec.placements;
    if (!is_of_world(first_) || first_.all.size() > placements.size() || placements.empty()) return kNoIndex;
    Sharding words;
    words.mesh = {{"", std::ssize(placements)}};
    const int dim = first_.spec.dim;
    words.placements = {{Placement::kShard, dim < 0 ? dim + first_.shape.size() : dim, 1}};
    for (const std::string_view placement : placements) {
      const std::optional<std::int64_t> rank = rank_of_placement(placement);
      if (!rank) return kNoIndex;
      words.ranks.push_back(*rank);
    }
    if (!forget_counting(words.ranks)) return kNoIndex;
    const std::vector<RankPiece>& pieces = context_.shardings.pieces(first_.shape, {words, {}});
    for (std::size_t i = 0; i < pieces.size(); ++i) {
      if (!agrees_with(i, pieces[i])) return kNoIndex;
    }
    return context_.shardings.index_of(words);
  }

  /// Shards without elements may be missing at the end.
  bool agrees_with(std::size_t index, const RankPiece& piece) const {
    if (index >= first_.all.size()) return piece.boxes.empty();
    const ShardBox& box = first_.all[index];
    if (box.placement != first_.spec.placements[index]) return false;
    if (piece.boxes.empty()) return is_empty(box.sizes);
    return std::ranges::equal(box.sizes, piece.local_sizes) &&
           std::ranges::equal(box.offsets, piece.boxes[0].offsets());
  }

  /// Clears ranks that are 0, 1, 2, ... \returns false if one occurs twice.
  static bool forget_counting(std::vector<std::int64_t>& ranks) {
    std::vector<std::int64_t> sorted = ranks;
    std::ranges::sort(sorted);
    if (std::ranges::adjacent_find(sorted) != sorted.end()) return false;
    if (sorted == ranks && sorted.back() == std::ssize(ranks) - 1) ranks.clear();
    return true;
  }

  MergeContext& context_;
  Holders holders_;
  const ShardedTensorValue& first_;
  std::vector<ShardExtent> stated_, found_;  ///< The shards in the metadata and those in the files.
};

}  // namespace

std::uint32_t merge_sharded_tensor(MergeContext& context, Holders holders) {
  return ShardedTensorMerge(context, holders).run();
}

}  // namespace shard::torch_ranks
