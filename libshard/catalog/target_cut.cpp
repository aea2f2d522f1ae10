#include "libshard/catalog/target_cut.h"

#include <fmt/format.h>

#include <algorithm>
#include <compare>
#include <span>
#include <string>
#include <vector>

#include "libshard/catalog/target_pieces.h"
#include "libshard/core/box.h"
#include "libshard/core/first_names.h"

namespace shard {

namespace {

class PieceAdder {
 public:
  explicit PieceAdder(TargetDraft& draft) : draft_(draft), target_(draft.target) {}

  void add_tensor(std::size_t selected, const TensorPieces& placed) {
    Tensor& tensor = draft_.add_tensor(selected);
    tensor.sharding = placed.sharding;
    const std::size_t first_storage = target_.storages.size();
    for (const RankPiece& piece : placed.pieces) {
      if (piece.boxes.empty()) {
        add_empty(selected, piece);
      } else if (draft_.traits.one_box_per_item) {
        for (const Box& box : piece.boxes) add_box(selected, piece.rank, box);
      } else {
        add_joined(selected, piece);
      }
    }
    tensor.chunk_count = static_cast<std::uint32_t>(target_.chunks.size()) - tensor.first_chunk;
    sort_chunks(tensor);
    if (draft_.traits.aliases && tensor.alias_of != kNoIndex) share_pieces(tensor, first_storage);
  }

  /// Names of aliases that are stored apart from their originals, in quotes.
  const FirstNames& aliases_apart() const { return aliases_apart_; }

 private:
  /// By offsets, those of one place by rank.
  void sort_chunks(const Tensor& tensor) {
    const auto less = [this](const Chunk& a, const Chunk& b) {
      const auto by_offsets = std::lexicographical_compare_three_way(a.offsets.begin(), a.offsets.end(),
                                                                     b.offsets.begin(), b.offsets.end());
      return by_offsets != 0 ? by_offsets < 0 : target_.stored[a.stored].rank < target_.stored[b.stored].rank;
    };
    std::ranges::stable_sort(std::span(target_.chunks).subspan(tensor.first_chunk), less);
  }

  bool is_cut_alike(const Tensor& a, const Tensor& b) const {
    const auto is_same = [this](const Chunk& x, const Chunk& y) {
      const StoredTensor &of_x = target_.stored[x.stored], &of_y = target_.stored[y.stored];
      return x.offsets == y.offsets && x.sizes == y.sizes && x.first == y.first && of_x.rank == of_y.rank &&
             of_x.shape == of_y.shape;
    };
    return std::ranges::equal(target_.chunks_of(a), target_.chunks_of(b), is_same);
  }

  /// An alias that is cut alike has its pieces in the storages of the first one; its own, the last ones made, go.
  void share_pieces(const Tensor& tensor, std::size_t first_storage) {
    const Tensor& first = target_.tensors[tensor.alias_of];
    if (!is_cut_alike(tensor, first)) {
      aliases_apart_.add(tensor.name);
      return;
    }
    for (std::uint32_t i = 0; i < tensor.chunk_count; ++i) {
      target_.stored[target_.chunks[tensor.first_chunk + i].stored].storage =
          target_.stored[target_.chunks[first.first_chunk + i].stored].storage;
    }
    target_.storages.resize(first_storage);
  }

  /// A stored tensor, row-major in a storage of its own, for one rank.
  std::uint32_t add_rank_tensor(std::size_t selected, std::int64_t rank, Dims sizes) {
    StoredTensor stored = draft_.make_stored(selected, sizes);
    stored.strides = row_major_strides(*target_.arena, sizes);
    stored.rank = static_cast<std::int32_t>(rank);
    stored.storage = draft_.add_storage(selected, TargetDraft::bytes_of(sizes, stored.dtype));
    return draft_.add_stored(stored);
  }

  /// A chunk that is a stored tensor of its own.
  void add_chunk(std::size_t selected, std::int64_t rank, std::span<const std::int64_t> offsets,
                 std::span<const std::int64_t> sizes) {
    Chunk chunk;
    chunk.offsets = target_.arena->dims(offsets);
    chunk.sizes = target_.arena->dims(sizes);
    chunk.stored = add_rank_tensor(selected, rank, chunk.sizes);
    chunk.strides = target_.stored[chunk.stored].strides;
    target_.chunks.push_back(chunk);
  }

  void add_box(std::size_t selected, std::int64_t rank, const Box& box) {
    const auto dims = static_cast<std::size_t>(box.dims);
    add_chunk(selected, rank, std::span(box.offset).first(dims), std::span(box.size).first(dims));
  }

  /// A piece without elements lies past the end of the dimensions in which nothing was left for it.
  void add_empty(std::size_t selected, const RankPiece& piece) {
    const Dims shape = draft_.source_tensor(selected).shape;
    std::vector<std::int64_t> offsets(piece.local_sizes.size());
    for (std::size_t d = 0; d < offsets.size(); ++d)
      offsets[d] = piece.local_sizes[d] == 0 ? shape[static_cast<int>(d)] : 0;
    add_chunk(selected, piece.rank, offsets, piece.local_sizes);
  }

  /// All boxes of a rank as one stored tensor, the local one.
  void add_joined(std::size_t selected, const RankPiece& piece) {
    const std::uint32_t stored = add_rank_tensor(selected, piece.rank, target_.arena->dims(piece.local_sizes));
    const Dims strides = target_.stored[stored].strides;
    for (std::size_t i = 0; i < piece.boxes.size(); ++i) {
      const auto dims = static_cast<std::size_t>(piece.boxes[i].dims);
      Chunk chunk;
      chunk.offsets = target_.arena->dims(std::span(piece.boxes[i].offset).first(dims));
      chunk.sizes = target_.arena->dims(std::span(piece.boxes[i].size).first(dims));
      chunk.strides = strides;
      chunk.stored = stored;
      for (std::size_t d = 0; d < dims; ++d) chunk.first += piece.local_offsets[i][d] * strides[static_cast<int>(d)];
      target_.chunks.push_back(chunk);
    }
  }

  TargetDraft& draft_;
  Catalog& target_;
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

void add_rank_files(TargetDraft& draft) {
  Catalog& target = draft.target;
  std::vector<std::int32_t> ranks;
  if (draft.traits.uncut_on_all) {
    for (std::int32_t rank = 0; rank < target.world_size.value_or(1); ++rank) ranks.push_back(rank);
  }
  for (const StoredTensor& stored : target.stored) ranks.push_back(stored.rank);
  if (!target.objects.empty()) ranks.push_back(0);
  std::ranges::sort(ranks);
  ranks.erase(std::ranges::unique(ranks).begin(), ranks.end());
  for (const std::int32_t rank : ranks) target.files.push_back({"", 0, rank});
  for (const StoredTensor& stored : target.stored) {
    const auto file = std::ranges::lower_bound(ranks, stored.rank) - ranks.begin();
    target.storages[stored.storage].file = static_cast<std::uint32_t>(file);
  }
}

}  // namespace shard
