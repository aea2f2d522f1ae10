#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <numeric>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "libshard/catalog/layouts/layout.h"
#include "libshard/catalog/targets/target_draft.h"
#include "libshard/core/box.h"
#include "libshard/core/checked.h"
#include "libshard/core/error.h"
#include "libshard/core/hash_table.h"
#include "libshard/core/short_text.h"
#include "libshard/core/sort_unique.h"

namespace shard {

namespace {

std::vector<std::int64_t> to_vector(Dims dims) { return {dims.begin(), dims.end()}; }

bool is_whole(const RankPiece& piece, Dims shape) { return std::ranges::equal(piece.local_sizes, shape); }

RankPiece whole_piece(Dims shape, std::int64_t rank) {
  RankPiece piece;
  piece.rank = rank;
  piece.local_sizes = to_vector(shape);
  const std::vector<std::int64_t> zeros(piece.local_sizes.size());
  piece.boxes.emplace_back(zeros, piece.local_sizes);
  piece.local_offsets.push_back(zeros);
  return piece;
}

/// Converts the chunks of a checkpoint to pieces. A piece with the offsets of the one before it is a replica, because
/// validated chunks with equal offsets are equal boxes and are adjacent.
std::vector<RankPiece> pieces_of_chunks(const Catalog& catalog, const Tensor& tensor) {
  std::vector<RankPiece> pieces;
  for (const Chunk& chunk : catalog.chunks_of(tensor)) {
    RankPiece piece;
    piece.rank = std::max<std::int64_t>(0, catalog.stored[chunk.stored].rank);
    piece.local_sizes = to_vector(chunk.sizes);
    if (!is_empty(chunk.sizes)) {
      piece.boxes.emplace_back(chunk.offsets, chunk.sizes);
      piece.local_offsets.emplace_back(piece.local_sizes.size());
      piece.replica = !pieces.empty() && !pieces.back().boxes.empty() &&
                      std::ranges::equal(pieces.back().boxes[0].offsets(), chunk.offsets);
    }
    pieces.push_back(std::move(piece));
  }
  std::ranges::stable_sort(pieces, {}, &RankPiece::rank);
  return pieces;
}

/// The placements with dimensions counted from the front. Those on dimensions that the tensor does not have become R.
std::vector<Placement> resolved(std::span<const Placement> placements, int dims) {
  std::vector<Placement> all;
  for (Placement placement : placements) {
    if (placement.dim < 0) placement.dim += dims;
    const bool is_cut = placement.kind != Placement::kReplicate && placement.dim >= 0 && placement.dim < dims;
    all.push_back(is_cut ? in_dtensor_terms(std::move(placement)) : Placement());
  }
  return all;
}

/// Whether the sharding is equivalent to one with the slowest axis first, as placements define them. If each dimension
/// is sharded by one axis, the order does not matter. For a dimension of several axes, the order must be that of the
/// mesh, because a part of a part depends on it: 5 elements over axes of 2 and 3 are not those over 3 and 2. An axis
/// with one rank divides nothing.
bool cuts_slowest_first(const Sharding& words, std::span<const std::size_t> order) {
  std::map<int, std::size_t> last;
  for (const std::size_t axis : order) {
    const Placement& placement = words.placements[axis];
    const bool divides = words.mesh[axis].size > 1 || placement.split == CutRule::kWidths;
    if (placement.kind == Placement::kReplicate || !divides) continue;
    const auto [entry, is_new] = last.try_emplace(placement.dim, axis);
    if (!is_new && entry->second > axis) return false;
    entry->second = axis;
  }
  return true;
}

/// Whether the sharding's ranks are below `ranks`, without duplicates.
bool fits(const Sharding& words, std::int64_t ranks) {
  std::int64_t product = 1;
  for (const MeshAxis& axis : words.mesh) {
    if (axis.size < 1 || axis.size > kMaxRanks / product) return false;
    product *= axis.size;
  }
  std::vector<std::int64_t> sorted = words.ranks;
  std::ranges::sort(sorted);
  const bool is_listed =
      sorted.empty() || (std::ssize(sorted) == product && sorted.front() >= 0 && sorted.back() < ranks &&
                         std::ranges::adjacent_find(sorted) == sorted.end());
  return is_listed && product <= ranks && words.placements.size() == words.mesh.size();
}

/// For each mesh coordinate, by number: the number of the coordinate with the same data that is 0 on all axes of
/// replicas. A coordinate's number is the sum of index * step; without the steps of the axes of replicas, it is that of
/// the first replica.
std::vector<std::size_t> first_replicas(const Sharding& words) {
  const std::size_t axes = words.mesh.size();
  std::vector<std::size_t> sizes(axes), steps(axes), coordinate(axes), numbers;
  for (std::size_t axis = axes, step = 1; axis-- > 0; step *= sizes[axis]) {
    sizes[axis] = static_cast<std::size_t>(words.mesh[axis].size);
    steps[axis] = words.placements[axis].kind == Placement::kReplicate ? 0 : step;
  }
  do {
    numbers.push_back(std::inner_product(coordinate.begin(), coordinate.end(), steps.begin(), std::size_t{0}));
  } while (next_index<std::size_t>(coordinate, sizes) >= 0);
  return numbers;
}

/// The pieces that a sharding describes, by rank.
std::vector<RankPiece> place(Dims shape, const Sharding& words) {
  const Sharding known{words.mesh, {}, resolved(words.placements, shape.size())};
  std::vector<RankPiece> pieces = place(shape, known.mesh, known.placements);
  if (words.ranks.empty()) return pieces;
  // Ranks need not be in the order of coordinates. The lowest of the ranks with the same data is the original.
  const std::vector<std::size_t> first = first_replicas(known);
  std::vector<std::int64_t> lowest(pieces.size(), kMaxRanks);
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    std::int64_t& rank = lowest[first[i]];
    rank = std::min(rank, words.ranks[i]);
  }
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    pieces[i].rank = words.ranks[i];
    pieces[i].replica = lowest[first[i]] != words.ranks[i];
  }
  std::ranges::sort(pieces, {}, &RankPiece::rank);
  return pieces;
}

/// The dimension that torch.chunk would have to split into `ranks` pieces, one per rank in order, to produce these
/// chunks; -1 if there is none. Pieces without elements may be missing. torch.chunk makes parts of ceil(n / ranks). The
/// first chunk determines the dimension, and every other one must then be at rank * step.
int chunked_dim(const Catalog& catalog, const Tensor& tensor, std::int64_t ranks) {
  const std::span<const Chunk> chunks = catalog.chunks_of(tensor);
  if (chunks.size() < 2) return -1;
  const Dims first = chunks[0].sizes;
  const int dim = static_cast<int>(std::ranges::mismatch(first, tensor.shape).in1 - first.begin());
  if (dim == tensor.shape.size()) return -1;
  const std::int64_t n = tensor.shape[dim], step = ceil_div(n, ranks);
  std::int64_t rank = 0;
  for (const Chunk& chunk : chunks) {
    if (is_empty(chunk.sizes)) continue;
    for (int d = 0; d < tensor.shape.size(); ++d) {
      const std::int64_t offset = d == dim ? step * rank : 0;
      const std::int64_t size = d == dim ? std::min(step, n - offset) : tensor.shape[d];
      if (chunk.offsets[d] != offset || chunk.sizes[d] != size) return -1;
    }
    if (catalog.stored[chunk.stored].rank != rank++) return -1;
  }
  return dim;
}

/// Checks that packed elements are split between blocks. Dimensions inside the innermost sharded one are whole, so a
/// run has size * inner elements, and runs begin at multiples of inner * the full size, plus inner * offset. All three
/// must be multiples of a block.
void check_cut(const SelectedTensor& selected, Dims shape, DType dtype, const Box& box) {
  const DTypeBlock block = dtype_block(dtype);
  if (block.elements == 1) return;
  std::int64_t inner = 1;
  for (int d = shape.size(); d-- > 0;) {
    const auto i = static_cast<std::size_t>(d);
    if (box.size[i] == shape[d]) {
      inner *= shape[d];
      continue;
    }
    const auto is_between = [&](std::int64_t n) { return n * inner % block.elements == 0; };
    if (is_between(box.offset[i]) && is_between(box.size[i]) && is_between(shape[d])) return;
    throw Error(ErrorCode::kUnsupported,
                fmt::format("tensor '{}' of {} {}: the border of {} is inside a byte", selected.name, to_string(shape),
                            dtype_name(dtype), to_string(box)))
        .of_tensor(selected.name)
        .because(fmt::format("{} of its elements share {} bytes", block.elements, block.bytes));
  }
}

/// The stored pieces of one tensor, and its sharding.
struct TensorPieces {
  std::vector<RankPiece> pieces;      ///< By rank.
  std::uint32_t sharding = kNoIndex;  ///< Index into PieceRule::shardings, or kNoIndex.
};

/// Computes the pieces of tensors one by one; caches placements by shape.
class PieceRule {
 public:
  /// \throws Error kInvalidArgument  the layout contradicts itself.
  PieceRule(const Catalog& source, const Layout& layout, const FormatTraits& traits)
      : source_(source), layout_(layout), traits_(traits) {
    if (const auto* ranks = std::get_if<RanksLayout>(&layout_)) init_ranks(*ranks);
    if (const auto* placed = std::get_if<MeshLayout>(&layout_)) mesh_ = *placed;
    for (const MeshLayout::Rule& rule : mesh_.rules) check_rule(rule);
    used_.resize(mesh_.rules.size());
  }

  /// The pieces to store under the format's traits. For a tensor without elements that no rank would store, one empty
  /// whole piece on rank 0. Valid until the next call. \throws Error kInvalidArgument  the followed checkpoint lacks
  /// the tensor or has a different shape for it. \throws Error kUnsupported  a border of pieces inside a byte.
  const TensorPieces& pieces(const SelectedTensor& selected) {
    const Tensor& tensor = source_.tensors[selected.source];
    const TensorPieces* made = nullptr;
    if (const auto* other = std::get_if<LikeLayout>(&layout_)) {
      made = &like(*other, selected.name, tensor.shape);
    } else if (std::holds_alternative<KeepLayout>(layout_)) {
      made = &followed(source_, tensor);
    } else {
      made = &placed(selected.name, tensor.shape);
    }
    for (const RankPiece& piece : made->pieces) {
      for (const Box& box : piece.boxes) {
        check_cut(selected, tensor.shape, tensor.dtype, box);
        check_cut(selected, tensor.shape, selected.dtype, box);
      }
    }
    if (const auto* ranks = std::get_if<RanksLayout>(&layout_)) {
      was_cut_ = was_cut_ || (ranks->dim < 0 ? -ranks->dim <= tensor.shape.size() : ranks->dim < tensor.shape.size());
    }
    return *made;
  }

  /// \throws Error kInvalidArgument  a rule that no tensor matched, a dimension that no tensor has.
  void check_used() const {
    const auto* ranks = std::get_if<RanksLayout>(&layout_);
    // Dimension 0 is the default, so a checkpoint that contains only scalars is not a mistake.
    if (ranks != nullptr && ranks->dim != 0 && !was_cut_) {
      throw Error(ErrorCode::kInvalidArgument,
                  fmt::format("cannot shard along dimension {}: no tensor has that dimension", ranks->dim))
          .found(ranks->dim);
    }
    const auto unused = std::ranges::find(used_, false);
    if (ranks != nullptr || unused == used_.end()) return;
    const std::string& rule = mesh_.rules[static_cast<std::size_t>(unused - used_.begin())].source;
    throw Error(ErrorCode::kInvalidArgument, fmt::format("'{}' matches no tensor", rule)).found(rule);
  }

  /// The number of ranks in the layout, if it is defined. Always defined for formats with a file for every rank.
  std::optional<std::int64_t> world_size() {
    const auto* other = std::get_if<LikeLayout>(&layout_);
    const bool is_kept = std::holds_alternative<KeepLayout>(layout_);
    if ((other == nullptr && !is_kept) || traits_.replicate_whole_tensors) return ranks();
    return other != nullptr ? other->like->world_size : source_.world_size;
  }

  /// All shardings used so far, without duplicates.
  const std::vector<Sharding>& shardings() const { return words_; }

 private:
  void init_ranks(const RanksLayout& ranks) {
    if (ranks.ranks < 1 || ranks.ranks > kMaxRanks) {
      throw Error(ErrorCode::kInvalidArgument, fmt::format("cannot shard tensors for {}", plural(ranks.ranks, "rank")))
          .expected(fmt::format("1 to {}", kMaxRanks))
          .found(ranks.ranks);
    }
    mesh_.mesh = {{"", ranks.ranks}};
    mesh_.rules = {{"", {{Placement::kShard, ranks.dim, 1}}, {}}};
    mesh_.matching = match_first_rule;
  }

  void check_rule(const MeshLayout::Rule& rule) const {
    if (rule.placements.size() == mesh_.mesh.size()) return;
    throw Error(ErrorCode::kInvalidArgument, fmt::format("'{}' has {}, the mesh has {}", rule.source,
                                                         plural(std::ssize(rule.placements), "placement"),
                                                         plural(std::ssize(mesh_.mesh), "axis", "axes")))
        .expected(static_cast<std::int64_t>(mesh_.mesh.size()))
        .found(static_cast<std::int64_t>(rule.placements.size()));
  }

  /// The first rule that matches, or mesh_.rules.size(). Later rules that match count as used.
  std::size_t rule_of(std::string_view name) {
    const std::vector<std::size_t> matching = mesh_.rules_for(name);
    for (const std::size_t rule : matching) used_[rule] = true;
    return matching.empty() ? mesh_.rules.size() : matching.front();
  }

  const TensorPieces& placed(std::string_view name, Dims shape) {
    const std::size_t number = rule_of(name);
    const auto [entry, is_new] = cache_.try_emplace({number, to_vector(shape)});
    if (!is_new) return entry->second;
    const std::vector<Placement> replicated(number < mesh_.rules.size() ? 0 : mesh_.mesh.size());
    const bool has_rule = number < mesh_.rules.size();
    const std::vector<Placement>& placements = has_rule ? mesh_.rules[number].placements : replicated;
    const std::span<const std::size_t> order = has_rule ? mesh_.rules[number].order : std::span<const std::size_t>();
    try {
      entry->second.pieces = stored(place(shape, mesh_.mesh, placements, order), shape);
    } catch (Error& error) {
      throw error.of_tensor(name).because(fmt::format("this is how the layout shards '{}' {}", name, to_string(shape)));
    }
    Sharding sharding{mesh_.mesh, {}, resolved(placements, shape.size())};
    if (cuts_slowest_first(sharding, order)) entry->second.sharding = intern(std::move(sharding));
    return entry->second;
  }

  const TensorPieces& like(const LikeLayout& other, std::string_view name, Dims shape) {
    const Tensor* tensor = other.like->find(name);
    if (tensor == nullptr) {
      throw Error(ErrorCode::kInvalidArgument,
                  fmt::format("the checkpoint that provides the layout has no tensor '{}'", name))
          .in_file(other.path)
          .of_tensor(name);
    }
    if (tensor->shape == shape) return followed(*other.like, *tensor);
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("tensor '{}' has a different shape in the checkpoint that provides the layout", name))
        .in_file(other.path)
        .of_tensor(name)
        .expected(to_string(shape))
        .found(to_string(tensor->shape));
  }

  /// The pieces as in the followed checkpoint. If every rank has a file, or joins its boxes, its sharding is needed in
  /// addition to its boxes, because it shows which ranks store nothing, and how boxes are joined.
  const TensorPieces& followed(const Catalog& catalog, const Tensor& tensor) {
    current_.sharding = words_of(catalog, tensor);
    const bool by_words = current_.sharding != kNoIndex && (traits_.keeps_empty || !traits_.single_box_items);
    current_.pieces = stored(
        by_words ? place(tensor.shape, words_[current_.sharding]) : pieces_of_chunks(catalog, tensor), tensor.shape);
    return current_;
  }

  std::uint32_t words_of(const Catalog& catalog, const Tensor& tensor) {
    if (tensor.sharding != kNoIndex) {
      followed_words_.resize(catalog.shardings.size(), kNoIndex);
      std::uint32_t& known = followed_words_[tensor.sharding];
      if (known == kNoIndex && fits(catalog.shardings[tensor.sharding], ranks_of(catalog))) {
        known = intern(catalog.shardings[tensor.sharding]);
      }
      if (known != kNoIndex) return known;
    }
    if (!traits_.keeps_empty) return kNoIndex;
    const int dim = chunked_dim(catalog, tensor, ranks_of(catalog));
    return dim < 0 ? kNoIndex : intern({{{"", ranks_of(catalog)}}, {}, {{Placement::kShard, dim, 1}}});
  }

  std::uint32_t intern(Sharding sharding) {
    const auto [index, is_new] = word_numbers_.try_emplace(key_of(sharding), static_cast<std::uint32_t>(words_.size()));
    if (is_new) words_.push_back(std::move(sharding));
    return index;
  }

  /// The number of ranks that a followed checkpoint states, or that its boxes have.
  std::int64_t ranks_of(const Catalog& catalog) {
    if (followed_ranks_ > 0) return followed_ranks_;
    followed_ranks_ = catalog.world_size.value_or(0);
    for (const StoredTensor& each : catalog.stored) {
      followed_ranks_ = std::max<std::int64_t>(followed_ranks_, each.rank + std::int64_t{1});
    }
    return followed_ranks_ = std::max<std::int64_t>(followed_ranks_, 1);
  }

  std::int64_t ranks() {
    if (const auto* other = std::get_if<LikeLayout>(&layout_)) return ranks_of(*other->like);
    if (std::holds_alternative<KeepLayout>(layout_)) return ranks_of(source_);
    return mesh_size(mesh_.mesh);
  }

  /// Drops pieces that the format does not store.
  std::vector<RankPiece> stored(std::vector<RankPiece> pieces, Dims shape) {
    const bool is_uncut = std::ranges::all_of(pieces, [&](const auto& p) { return is_whole(p, shape); });
    if (is_uncut && traits_.replicate_whole_tensors) {
      pieces.clear();
      for (std::int64_t rank = 0; rank < ranks(); ++rank) pieces.push_back(whole_piece(shape, rank));
    }
    const auto is_dropped = [&](const RankPiece& piece) {
      return (piece.replica && !traits_.keeps_replicas) || (piece.boxes.empty() && !traits_.keeps_empty);
    };
    std::erase_if(pieces, is_dropped);
    if (pieces.empty()) pieces.push_back(whole_piece(shape, 0));
    return pieces;
  }

  const Catalog& source_;
  const Layout& layout_;
  const FormatTraits& traits_;
  MeshLayout mesh_;  ///< Also the equivalent of a RanksLayout.
  std::vector<bool> used_;
  bool was_cut_ = false;
  std::map<std::pair<std::size_t, std::vector<std::int64_t>>, TensorPieces> cache_;
  TensorPieces current_;
  std::vector<Sharding> words_;
  HashMap<std::string, std::uint32_t> word_numbers_;
  std::vector<std::uint32_t> followed_words_;  ///< By sharding of the followed checkpoint: its index in `words_`.
  std::int64_t followed_ranks_ = 0;
};

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
    const std::uint32_t stored = add_rank_tensor(selected, rank, box.sizes());
    builder_.add_chunk(stored, box.offsets(), box.sizes(), target_.stored[stored].strides, 0);
  }

  /// All boxes of a rank as one stored tensor, the local one.
  void add_joined(std::size_t selected, const RankPiece& piece) {
    const std::uint32_t stored = add_rank_tensor(selected, piece.rank, piece.local_sizes);
    for (std::size_t i = 0; i < piece.boxes.size(); ++i) {
      builder_.add_part(stored, piece.boxes[i].offsets(), piece.boxes[i].sizes(), piece.local_offsets[i]);
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
