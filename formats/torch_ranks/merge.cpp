#include "formats/torch_ranks/merge.h"

#include <fmt/format.h>

#include <algorithm>
#include <compare>
#include <optional>
#include <utility>

#include "formats/torch/saved_file.h"
#include "formats/torch/unnamed_tensors.h"
#include "libshard/core/short_text.h"
#include "libshard/core/value_equality.h"

namespace shard::torch_ranks {

namespace {

std::strong_ordering compare_parts(const PathPart& a, const PathPart& b) {
  if (a.is_index != b.is_index) return a.is_index <=> b.is_index;
  if (a.is_int_key != b.is_int_key) return a.is_int_key <=> b.is_int_key;
  return a.is_index ? a.index <=> b.index : a.key() <=> b.key();
}

/// Orders by name, path, rank. If a file has one path twice, its order is kept.
std::strong_ordering compare_place(const RankLeaf& a, const RankLeaf& b) {
  if (const auto order = a.name <=> b.name; order != 0) return order;
  return std::lexicographical_compare_three_way(a.path.begin(), a.path.end(), b.path.begin(), b.path.end(),
                                                compare_parts);
}

/// Merges a tensor whose ranks record the position of their pieces in it. \returns its index.
/// \throws Error kCorruption  ranks contradict one another
std::uint32_t merge_placed_tensor(MergeContext& context, Holders holders) {
  const auto value_of = [](const Holder& each) -> const PlacedTensorValue& {
    return each.file->placed[each.leaf->item];
  };
  const PlacedTensorValue& first = value_of(holders.front());
  const std::uint32_t index = begin_tensor(context, holders.front(), first.view.dtype, first.shape);
  for (const Holder& holder : holders) {
    const PlacedTensorValue& value = value_of(holder);
    check_whole(context, holders, holder, {value.shape, value.view.dtype}, {first.shape, first.view.dtype});
    const std::uint32_t stored = add_stored(context, holder, value.view);
    for (const PlacedPiece& piece : value.pieces) {
      context.builder.add_part(stored, piece.offsets, piece.sizes, piece.from);
    }
  }
  return index;
}

class Merge {
 public:
  Merge(Catalog& catalog, torch_save::SavedFiles& files, const std::vector<RankFile>& ranks, const MeshLayout* layout,
        bool own_tensors, Findings& findings)
      : shardings_(catalog),
        context_{catalog, CatalogBuilder(catalog), files, shardings_, catalog.world_size.value()},
        ranks_(ranks),
        layout_(layout),
        own_tensors_(own_tensors),
        findings_(findings),
        hidden_(*catalog.arena) {}

  void run() {
    const std::vector<Holder> all = sorted_leaves();
    if (findings_.goes_on()) for_each_name(all, [this](Holders holders) { look_for_other_slices(holders); });
    for_each_name(all, [this](Holders holders) { try_name(holders); });
    finish_root();
    warn();
  }

 private:
  std::vector<Holder> sorted_leaves() const {
    std::vector<Holder> all;
    for (const RankFile& file : ranks_) {
      for (const RankLeaf& leaf : file.leaves) all.push_back({&file, &leaf});
    }
    std::ranges::stable_sort(all, [](const Holder& a, const Holder& b) { return compare_place(*a.leaf, *b.leaf) < 0; });
    return all;
  }

  template <class Visit>
  static void for_each_name(Holders all, const Visit& visit) {
    for (std::size_t begin = 0, end = 0; begin < all.size(); begin = end) {
      end = begin + 1;
      while (end < all.size() && compare_place(*all[begin].leaf, *all[end].leaf) == 0) ++end;
      visit(all.subspan(begin, end - begin));
    }
  }

  /// For repair: plain files have ranks only by their names. If one slice contradicts the layout, some file is another
  /// rank's or save's, so its other slices are too, and it is unknown which file that is.
  void look_for_other_slices(Holders holders) {
    const auto is_plain = [](const Holder& each) { return each.leaf->kind == LeafKind::kPlain; };
    if (other_slice_ || !is_on_all(holders) || !std::ranges::all_of(holders, is_plain)) return;
    const MeshLayout::Rule* const rule = rule_of(holders[0]);
    if (rule == nullptr) return;
    try {
      check_slices(context_, holders, *layout_, *rule);
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kCorruption) throw;
      other_slice_ = error;
    }
  }

  /// Skips a name about which ranks contradict one another.
  void try_name(Holders holders) {
    CatalogMark mark(context_.catalog);
    const std::size_t nodes = nodes_.size();
    try {
      merge_name(holders);
      mark.keep();
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kCorruption) throw;
      findings_.report(error);
      nodes_.resize(nodes);
      is_in_root_ = false;
    }
  }

  void merge_name(Holders holders) {
    check_twice(holders);
    is_in_root_ = is_in_root_ && holders[0].file == &ranks_.front();
    if (std::ranges::any_of(holders, [](const Holder& each) { return each.leaf->lost_attributes; })) {
      attributed_.add(holders[0].leaf->name);
    }
    const LeafKind kind = holders[0].leaf->kind;
    const auto other = std::ranges::find_if(holders, [&](const Holder& each) { return each.leaf->kind != kind; });
    if (other != holders.end()) return merge_mixed(holders, *other);
    switch (kind) {
      case LeafKind::kShardedTensor:
        return set_tensor(holders[0], merge_sharded_tensor(context_, holders));
      case LeafKind::kDTensor:
        return set_tensor(holders[0], merge_dtensor(context_, holders));
      case LeafKind::kPlaced:
        return set_tensor(holders[0], merge_placed_tensor(context_, holders));
      case LeafKind::kPlain:
        return merge_plain(holders);
      case LeafKind::kObject:
        return merge_objects(holders);
    }
  }

  /// Refuses a dict with equal keys, which no Python dict has.
  void check_twice(Holders holders) const {
    for (std::size_t i = 1; i < holders.size(); ++i) {
      if (holders[i].rank() != holders[i - 1].rank()) continue;
      throw contradiction(context_, holders[i], FindingKind::kDuplicateName,
                          "its rank stores it twice, at one position");
    }
  }

  /// Ranks may have different plain tensors, but must agree on sharded tensors.
  void merge_mixed(Holders holders, const Holder& other) {
    const auto is_cut = [](const Holder& each) {
      const LeafKind kind = each.leaf->kind;
      return kind == LeafKind::kShardedTensor || kind == LeafKind::kDTensor || kind == LeafKind::kPlaced;
    };
    if (std::ranges::any_of(holders, is_cut)) {
      throw contradiction(context_, other, FindingKind::kMixedSave,
                          fmt::format("rank {} has {}, rank {} {}", other.rank(), name_of(other.leaf->kind),
                                      holders[0].rank(), name_of(holders[0].leaf->kind)))
          .because("a tensor must be sharded on all ranks or on none")
          .expected(name_of(holders[0].leaf->kind))
          .found(name_of(other.leaf->kind));
    }
    for (const Holder& holder : holders) {
      if (holder.leaf->kind == LeafKind::kPlain) {
        add_plain(holder, holder.rank());
      } else {
        add_object(holder, holder.rank());
      }
    }
  }

  bool is_on_all(Holders holders) const { return std::ssize(holders) == context_.world_size; }

  /// For repair: whether all remaining ranks have it, if there are several.
  bool is_on_all_left(Holders holders) {
    Findings& findings = context_.files.findings();
    if (is_on_all(holders) || !findings.goes_on()) return is_on_all(holders);
    if (holders.size() < 2 || holders.size() != ranks_.size()) return false;
    if (!std::exchange(has_warned_of_left_, true)) {
      findings.mend("assumed that lost ranks had the values on which all remaining ranks agree");
    }
    return true;
  }

  const MeshLayout::Rule* rule_of(const Holder& holder) const {
    if (layout_ == nullptr) return nullptr;
    const std::vector<std::size_t> matching = layout_->rules_for(holder.leaf->name);
    if (matching.empty()) return nullptr;
    const MeshLayout::Rule* rule = &layout_->rules[matching.front()];
    const int dims = holder.file->plain[holder.leaf->item].shape.size();
    const bool cuts = std::ranges::any_of(rule->placements, [dims](const Placement& placement) {
      return placement.kind != Placement::kReplicate && placement.dim >= -dims && placement.dim < dims;
    });
    return cuts ? rule : nullptr;
  }

  void merge_plain(Holders holders) {
    if (const MeshLayout::Rule* rule = rule_of(holders[0])) {
      if (!is_on_all(holders)) {
        throw contradiction(context_, holders[0], FindingKind::kGap,
                            "not every rank's file contains its slice of the tensor")
            .expected(context_.world_size)
            .found(std::ssize(holders));
      }
      if (other_slice_) {
        throw contradiction(context_, holders[0], FindingKind::kRankMismatch, "a file is of a different rank or save")
            .because(other_slice_->what());
      }
      return set_tensor(holders[0], merge_slices(context_, holders, *layout_, *rule));
    }
    const std::uint32_t first = add_plain(holders[0], -1);
    std::vector<std::uint32_t> stored;
    bool is_same = true;
    std::uint32_t whole = stored_of(first);  // The reference for the comparison: an intact copy, if there is one.
    for (const Holder& holder : holders.subspan(1)) {
      stored.push_back(add_stored(context_, holder, holder.view()));
      const std::vector<StoredTensor>& all = context_.catalog.stored;
      if (context_.files.is_lost(all[whole].storage)) whole = stored.back();
      is_same = is_same && is_equal(context_.files, context_.catalog, all[whole], all[stored.back()]);
    }
    finish_plain(holders, first, stored, is_same ? std::optional(whole) : std::nullopt);
  }

  /// \param same  the stored tensor that represents all of them; nothing if they differ.
  void finish_plain(Holders holders, std::uint32_t first, const std::vector<std::uint32_t>& stored,
                    std::optional<std::uint32_t> same) {
    Catalog& catalog = context_.catalog;
    if (same && (!own_tensors_ || is_on_all_left(holders))) {
      if (*same != stored_of(first)) ++taken_from_others_;
      catalog.stored[stored_of(first)] = catalog.stored[*same];
      catalog.stored.resize(catalog.stored.size() - stored.size());
      if (!is_on_all_left(holders)) catalog.tensors[first].rank = holders[0].rank();
      return;
    }
    catalog.tensors[first].rank = holders[0].rank();
    for (std::size_t i = 0; i < stored.size(); ++i) add_whole(holders[i + 1], stored[i], holders[i + 1].rank());
  }

  std::uint32_t stored_of(std::uint32_t tensor) const {
    return context_.catalog.chunks_of(context_.catalog.tensors[tensor]).front().stored;
  }

  std::uint32_t add_plain(const Holder& holder, std::int32_t rank) {
    return add_whole(holder, add_stored(context_, holder, holder.view()), rank);
  }

  std::uint32_t add_whole(const Holder& holder, std::uint32_t stored, std::int32_t rank) {
    const StoredTensor& from = context_.catalog.stored[stored];
    const std::uint32_t index = begin_tensor(context_, holder, from.dtype, from.shape);
    context_.builder.tensor().rank = rank;
    context_.builder.add_whole(stored);
    set_tensor(holder, index);
    return index;
  }

  void merge_objects(Holders holders) {
    const auto differs = [&](const Holder& each) {
      return !objects_.is_equal(*holders[0].leaf->node, *each.leaf->node);
    };
    if (std::ranges::none_of(holders, differs))
      return add_object(holders[0], is_on_all_left(holders) ? -1 : holders[0].rank());
    for (const Holder& holder : holders) add_object(holder, holder.rank());
  }

  void add_object(const Holder& holder, std::int32_t rank) {
    Catalog& catalog = context_.catalog;
    const RankLeaf& leaf = *holder.leaf;
    catalog.objects.push_back({leaf.name, leaf.path, leaf.node, rank});
    if (hidden_.kind_in(*leaf.node) == "attribute") holding_.add(leaf.name);
  }

  void warn() {
    if (taken_from_others_ > 0) {
      context_.files.findings().mend(fmt::format("{} damaged plain {} taken from another rank", taken_from_others_,
                                                 taken_from_others_ == 1 ? "tensor was" : "tensors were"));
    }
    std::vector<std::string>& warnings = context_.catalog.warnings;
    if (attributed_.count() > 0) warnings.push_back(torch_save::lost_attributes_text(attributed_));
    if (holding_.count() == 0) return;
    warnings.push_back(fmt::format("objects have tensors as attributes, which are not listed: {}", holding_.text()));
  }

  /// Values are compared as they are in the pickles, so rank 0's tree is changed only after all comparisons.
  void set_tensor(const Holder& holder, std::uint32_t index) {
    if (holder.file == &ranks_.front()) nodes_.emplace_back(holder.leaf->node, index);
  }

  void finish_root() {
    if (!is_in_root_) return;
    for (const auto& [node, index] : nodes_) become_tensor(*node, index);
    context_.catalog.root = ranks_.front().root;
    for (const std::string& name : torch_save::containers_with_unnamed_tensors(*context_.catalog.root, hidden_)) {
      holding_.add(name);
    }
  }

  Shardings shardings_;
  MergeContext context_;
  const std::vector<RankFile>& ranks_;
  const MeshLayout* layout_;
  bool own_tensors_;
  Findings& findings_;
  torch_save::HiddenTensors hidden_;
  ValueEquality objects_{{.persistent_by_id = false, .budget = context_.catalog.arena->budget().get()}};
  bool has_warned_of_left_ = false;
  std::size_t taken_from_others_ = 0;  ///< For repair: the number of tensors whose first rank's copy is lost.
  FirstNames holding_;                 ///< Names of objects that contain tensors.
  FirstNames attributed_;              ///< Names of tensors that were read without attributes.
  std::vector<std::pair<Value*, std::uint32_t>> nodes_;  ///< Nodes of rank 0's tree, and their tensors.
  bool is_in_root_ = *ranks_.front().rank == 0;          ///< All names so far are in rank 0's tree.
  std::optional<Error> other_slice_;                     ///< For repair: the first slice that contradicts the layout.
};

}  // namespace

void merge(Catalog& catalog, torch_save::SavedFiles& files, const std::vector<RankFile>& ranks,
           const MeshLayout* layout, bool own_tensors, Findings& findings) {
  Merge(catalog, files, ranks, layout, own_tensors, findings).run();
}

}  // namespace shard::torch_ranks
