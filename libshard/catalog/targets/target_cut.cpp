#include <fmt/format.h>

#include <algorithm>
#include <span>
#include <string>
#include <vector>

#include "libshard/catalog/layouts/layout.h"
#include "libshard/catalog/targets/target_draft.h"
#include "libshard/catalog/targets/target_pieces.h"
#include "libshard/core/box.h"
#include "libshard/core/short_text.h"
#include "libshard/core/sort_unique.h"

namespace shard {

namespace {

/// Adds the pieces of each tensor to the draft: as one stored tensor per rank, or per box if the format stores boxes
/// separately.
class PieceAdder {
 public:
  explicit PieceAdder(TargetDraft& draft) : draft_(draft), target_(draft.target), builder_(draft.builder) {}

  void add_tensor(std::size_t selected, const TensorPieces& placed) {
    Tensor& tensor = draft_.begin_tensor(selected);
    tensor.sharding = placed.sharding;
    const std::size_t first_storage = target_.storages.size();
    for (const RankPiece& piece : placed.pieces) {
      if (piece.boxes.empty()) {
        builder_.add_empty(add_rank_tensor(selected, piece.rank, piece.local_sizes));
      } else if (draft_.traits.single_box_items) {
        for (const Box& box : piece.boxes) add_box(selected, piece.rank, box);
      } else {
        add_joined(selected, piece);
      }
    }
    target_.sort_chunks(std::span(target_.chunks).subspan(tensor.first_chunk));
    if (draft_.traits.aliases && tensor.alias_of != kNoIndex) share_pieces(tensor, first_storage);
  }

  /// Names of aliases that are stored apart from their originals, in quotes.
  const FirstNames& aliases_apart() const { return aliases_apart_; }

 private:
  /// True if the two tensors have equal boxes on equal ranks, at the same positions in the ranks' tensors.
  bool is_cut_alike(const Tensor& a, const Tensor& b) const {
    const auto is_same = [this](const Chunk& x, const Chunk& y) {
      const StoredTensor &of_x = target_.stored_of(x), &of_y = target_.stored_of(y);
      return x.offsets == y.offsets && x.sizes == y.sizes && x.first == y.first && of_x.rank == of_y.rank &&
             of_x.shape == of_y.shape;
    };
    return std::ranges::equal(target_.chunks_of(a), target_.chunks_of(b), is_same);
  }

  /// Makes an alias with equal pieces use the storages of the first tensor's pieces. Its own storages, which were added
  /// last, are removed.
  void share_pieces(const Tensor& tensor, std::size_t first_storage) {
    const Tensor& first = target_.tensors[tensor.alias_of];
    if (!is_cut_alike(tensor, first)) {
      aliases_apart_.add(tensor.name);
      return;
    }
    for (std::uint32_t i = 0; i < tensor.chunk_count; ++i) {
      target_.stored[target_.chunks[tensor.first_chunk + i].stored].storage =
          target_.stored_of(target_.chunks[first.first_chunk + i]).storage;
    }
    target_.storages.resize(first_storage);
  }

  /// A stored tensor for one rank, row-major, with a separate storage.
  std::uint32_t add_rank_tensor(std::size_t selected, std::int64_t rank, std::span<const std::int64_t> sizes) {
    StoredTensor stored = draft_.make_stored(selected, target_.arena->dims(sizes));
    stored.strides = row_major_strides(*target_.arena, sizes);
    stored.rank = static_cast<std::int32_t>(rank);
    stored.storage = draft_.add_storage(selected, TargetDraft::bytes_of(stored.shape, stored.dtype));
    return builder_.add_stored(stored);
  }

  /// A box that is a separate stored tensor.
  void add_box(std::size_t selected, std::int64_t rank, const Box& box) {
    const auto dims = static_cast<std::size_t>(box.dims);
    const std::span<const std::int64_t> sizes = std::span(box.size).first(dims);
    const std::uint32_t stored = add_rank_tensor(selected, rank, sizes);
    builder_.add_chunk(stored, std::span(box.offset).first(dims), sizes, target_.stored[stored].strides, 0);
  }

  /// All boxes of a rank as one stored tensor, the local one.
  void add_joined(std::size_t selected, const RankPiece& piece) {
    const std::uint32_t stored = add_rank_tensor(selected, piece.rank, piece.local_sizes);
    for (std::size_t i = 0; i < piece.boxes.size(); ++i) {
      const Box& box = piece.boxes[i];
      const auto dims = static_cast<std::size_t>(box.dims);
      builder_.add_part(stored, std::span(box.offset).first(dims), std::span(box.size).first(dims),
                        std::span(piece.local_offsets[i]).first(dims));
    }
  }

  TargetDraft& draft_;
  Catalog& target_;
  CatalogBuilder& builder_;
  FirstNames aliases_apart_;
};

void warn_of_aliases(const FirstNames& apart, Catalog& target) {
  if (apart.count() == 0) return;
  target.warnings.push_back(fmt::format(
      "{} aliases are stored as separate copies because they are sharded differently from their originals: {}",
      apart.count(), apart.text()));
}

}  // namespace

bool add_pieces(TargetDraft& draft, const Layout& layout) {
  PieceRule rule(draft.source, layout, draft.traits);
  PieceAdder adder(draft);
  const std::vector<SelectedTensor>& selected = draft.selection.tensors;
  for (std::size_t i = 0; i < selected.size(); ++i) adder.add_tensor(i, rule.pieces(selected[i]));
  rule.check_used();
  draft.target.warnings = draft.sharing.warnings(true);
  warn_of_aliases(adder.aliases_apart(), draft.target);
  draft.target.world_size = rule.world_size();
  draft.target.shardings = rule.shardings();
  return adder.aliases_apart().count() > 0;
}

/// The target has one file for each rank that stores something, in the order of ranks.
void add_rank_files(TargetDraft& draft) {
  Catalog& target = draft.target;
  std::vector<std::int32_t> ranks;
  if (draft.traits.replicate_whole_tensors) {
    for (std::int32_t rank = 0; rank < target.world_size.value_or(1); ++rank) ranks.push_back(rank);
  }
  for (const StoredTensor& stored : target.stored) ranks.push_back(stored.rank);
  if (!target.objects.empty()) ranks.push_back(0);
  sort_unique(ranks);
  for (const std::int32_t rank : ranks) target.files.push_back({"", 0, rank});
  for (const StoredTensor& stored : target.stored) {
    const auto file = std::ranges::lower_bound(ranks, stored.rank) - ranks.begin();
    target.storages[stored.storage].file = static_cast<std::uint32_t>(file);
  }
}

}  // namespace shard
