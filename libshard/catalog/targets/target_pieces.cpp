#include "libshard/catalog/targets/target_pieces.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <map>
#include <numeric>

#include "libshard/core/box.h"
#include "libshard/core/error.h"
#include "libshard/core/hash_table.h"
#include "libshard/core/short_text.h"

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

/// Converts the chunks of a checkpoint to pieces. Equal boxes are adjacent in the order of chunks, so a piece with the
/// offsets of the one before it is a replica: validated chunks with equal offsets are equal boxes.
std::vector<RankPiece> pieces_of_chunks(const Catalog& catalog, const Tensor& tensor) {
  std::vector<RankPiece> pieces;
  for (const Chunk& chunk : catalog.chunks_of(tensor)) {
    RankPiece piece;
    piece.rank = std::max<std::int64_t>(0, catalog.stored[chunk.stored].rank);
    piece.local_sizes = to_vector(chunk.sizes);
    if (!is_empty(chunk.sizes)) {
      piece.boxes.emplace_back(chunk.offsets, chunk.sizes);
      piece.local_offsets.emplace_back(piece.local_sizes.size());
      piece.replica =
          !pieces.empty() && !pieces.back().boxes.empty() &&
          std::ranges::equal(std::span(pieces.back().boxes[0].offset).first(piece.local_sizes.size()), chunk.offsets);
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
/// mesh, because a part of a part depends on it: 5 elements over axes of 2 and 3 are not those over 3 and 2.
bool cuts_slowest_first(const Sharding& words, std::span<const std::size_t> order) {
  std::map<int, std::size_t> last;
  for (const std::size_t axis : order) {
    if (words.placements[axis].kind == Placement::kReplicate) continue;
    const auto [entry, is_new] = last.try_emplace(words.placements[axis].dim, axis);
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
  // Ranks need not be in the order of coordinates. Of the ranks with the same data, the lowest one is the original.
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
/// chunks; -1 if there is none. Pieces without elements may be missing. torch.chunk makes parts of ceil(n / ranks); the
/// first chunk tells the dimension, and every other one must then be at rank * step.
int chunked_dim(const Catalog& catalog, const Tensor& tensor, std::int64_t ranks) {
  const std::span<const Chunk> chunks = catalog.chunks_of(tensor);
  if (chunks.size() < 2) return -1;
  const Dims first = chunks[0].sizes;
  const int dim = static_cast<int>(std::ranges::mismatch(first, tensor.shape).in1 - first.begin());
  if (dim == tensor.shape.size()) return -1;
  const std::int64_t n = tensor.shape[dim], step = n / ranks + (n % ranks != 0 ? 1 : 0);
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

}  // namespace

bool cuts_tensors(const Layout& layout) {
  return std::holds_alternative<RanksLayout>(layout) || std::holds_alternative<MeshLayout>(layout) ||
         std::holds_alternative<LikeLayout>(layout) || std::holds_alternative<KeepLayout>(layout);
}

struct PieceRule::Impl {
  struct Placed {
    std::vector<RankPiece> pieces;
    std::uint32_t sharding = kNoIndex;
  };

  Impl(const Catalog& source_catalog, const Layout& given, const FormatTraits& format)
      : source(source_catalog), layout(given), traits(format) {
    if (const auto* ranks = std::get_if<RanksLayout>(&layout)) init_ranks(*ranks);
    if (const auto* placed = std::get_if<MeshLayout>(&layout)) mesh = *placed;
    for (const MeshLayout::Rule& rule : mesh.rules) check_rule(rule);
    used.resize(mesh.rules.size());
  }

  void init_ranks(const RanksLayout& ranks) {
    if (ranks.ranks < 1 || ranks.ranks > kMaxRanks) {
      throw Error(ErrorCode::kInvalidArgument, fmt::format("cannot shard tensors for {}", plural(ranks.ranks, "rank")))
          .expected(fmt::format("1 to {}", kMaxRanks))
          .found(ranks.ranks);
    }
    mesh.mesh = {{"", ranks.ranks}};
    mesh.rules = {{"", {{Placement::kShard, ranks.dim, 1}}, {}}};
    mesh.matching = match_first_rule;
  }

  void check_rule(const MeshLayout::Rule& rule) const {
    if (rule.placements.size() == mesh.mesh.size()) return;
    throw Error(ErrorCode::kInvalidArgument, fmt::format("'{}' has {}, the mesh has {}", rule.source,
                                                         plural(std::ssize(rule.placements), "placement"),
                                                         plural(std::ssize(mesh.mesh), "axis", "axes")))
        .expected(static_cast<std::int64_t>(mesh.mesh.size()))
        .found(static_cast<std::int64_t>(rule.placements.size()));
  }

  /// The first rule that matches, or mesh.rules.size(). Later rules that match count as used.
  std::size_t rule_of(std::string_view name) {
    const std::vector<std::size_t> matching = mesh.rules_for(name);
    for (const std::size_t rule : matching) used[rule] = true;
    return matching.empty() ? mesh.rules.size() : matching.front();
  }

  const Placed& placed(std::string_view name, Dims shape) {
    const std::size_t number = rule_of(name);
    const auto [entry, is_new] = cache.try_emplace({number, to_vector(shape)});
    if (!is_new) return entry->second;
    const std::vector<Placement> replicated(number < mesh.rules.size() ? 0 : mesh.mesh.size());
    const bool has_rule = number < mesh.rules.size();
    const std::vector<Placement>& placements = has_rule ? mesh.rules[number].placements : replicated;
    const std::span<const std::size_t> order = has_rule ? mesh.rules[number].order : std::span<const std::size_t>();
    try {
      entry->second.pieces = stored(place(shape, mesh.mesh, placements, order), shape);
    } catch (Error& error) {
      throw error.of_tensor(name).because(fmt::format("this is how the layout shards '{}' {}", name, to_string(shape)));
    }
    Sharding sharding{mesh.mesh, {}, resolved(placements, shape.size())};
    if (cuts_slowest_first(sharding, order)) entry->second.sharding = intern(std::move(sharding));
    return entry->second;
  }

  const Placed& like(const Catalog& other, std::string_view name, Dims shape) {
    const Tensor* tensor = other.find(name);
    if (tensor == nullptr) {
      throw Error(ErrorCode::kInvalidArgument,
                  fmt::format("the checkpoint that provides the layout has no tensor '{}'", name))
          .of_tensor(name);
    }
    if (tensor->shape == shape) return followed(other, *tensor);
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("tensor '{}' has a different shape in the checkpoint that provides the layout", name))
        .of_tensor(name)
        .expected(to_string(shape))
        .found(to_string(tensor->shape));
  }

  /// The pieces as in the followed checkpoint. If every rank has a file, or joins its boxes, its sharding is needed in
  /// addition to its boxes: it shows which ranks store nothing, and how boxes are joined.
  const Placed& followed(const Catalog& catalog, const Tensor& tensor) {
    current.sharding = words_of(catalog, tensor);
    const bool by_words = current.sharding != kNoIndex && (traits.keeps_empty || !traits.single_box_items);
    current.pieces = stored(by_words ? place(tensor.shape, words[current.sharding]) : pieces_of_chunks(catalog, tensor),
                            tensor.shape);
    return current;
  }

  std::uint32_t words_of(const Catalog& catalog, const Tensor& tensor) {
    if (tensor.sharding != kNoIndex) {
      followed_words.resize(catalog.shardings.size(), kNoIndex);
      std::uint32_t& known = followed_words[tensor.sharding];
      if (known == kNoIndex && fits(catalog.shardings[tensor.sharding], ranks_of(catalog))) {
        known = intern(catalog.shardings[tensor.sharding]);
      }
      if (known != kNoIndex) return known;
    }
    if (!traits.keeps_empty) return kNoIndex;
    const int dim = chunked_dim(catalog, tensor, ranks_of(catalog));
    return dim < 0 ? kNoIndex : intern({{{"", ranks_of(catalog)}}, {}, {{Placement::kShard, dim, 1}}});
  }

  std::uint32_t intern(Sharding sharding) {
    const auto [index, is_new] = word_numbers.try_emplace(key_of(sharding), static_cast<std::uint32_t>(words.size()));
    if (is_new) words.push_back(std::move(sharding));
    return index;
  }

  /// The number of ranks that a followed checkpoint states, or that its boxes have.
  std::int64_t ranks_of(const Catalog& catalog) {
    if (followed_ranks > 0) return followed_ranks;
    followed_ranks = catalog.world_size.value_or(0);
    for (const StoredTensor& each : catalog.stored) {
      followed_ranks = std::max<std::int64_t>(followed_ranks, each.rank + std::int64_t{1});
    }
    return followed_ranks = std::max<std::int64_t>(followed_ranks, 1);
  }

  std::int64_t ranks() {
    if (const auto* other = std::get_if<LikeLayout>(&layout)) return ranks_of(*other->like);
    if (std::holds_alternative<KeepLayout>(layout)) return ranks_of(source);
    std::int64_t product = 1;
    for (const MeshAxis& axis : mesh.mesh) product *= axis.size;
    return product;
  }

  /// Drops pieces that the format does not store.
  std::vector<RankPiece> stored(std::vector<RankPiece> pieces, Dims shape) {
    const bool is_uncut = std::ranges::all_of(pieces, [&](const auto& p) { return is_whole(p, shape); });
    if (is_uncut && traits.replicate_whole_tensors) {
      pieces.clear();
      for (std::int64_t rank = 0; rank < ranks(); ++rank) pieces.push_back(whole_piece(shape, rank));
    }
    const auto is_dropped = [&](const RankPiece& piece) {
      return (piece.replica && !traits.keeps_replicas) || (piece.boxes.empty() && !traits.keeps_empty);
    };
    std::erase_if(pieces, is_dropped);
    if (pieces.empty()) pieces.push_back(whole_piece(shape, 0));
    return pieces;
  }

  const Catalog& source;
  const Layout& layout;
  const FormatTraits& traits;
  MeshLayout mesh;  ///< Also the equivalent of a RanksLayout.
  std::vector<bool> used;
  bool was_cut = false;
  std::map<std::pair<std::size_t, std::vector<std::int64_t>>, Placed> cache;
  Placed current;
  std::vector<Sharding> words;
  HashMap<std::string, std::uint32_t> word_numbers;
  std::vector<std::uint32_t> followed_words;  ///< By sharding of the followed checkpoint: its index in `words`.
  std::int64_t followed_ranks = 0;
};

PieceRule::PieceRule(const Catalog& source, const Layout& layout, const FormatTraits& traits)
    : impl_(std::make_unique<Impl>(source, layout, traits)) {}

PieceRule::~PieceRule() = default;

TensorPieces PieceRule::pieces(const SelectedTensor& selected) {
  Impl& impl = *impl_;
  const Tensor& tensor = impl.source.tensors[selected.source];
  const Impl::Placed* placed = nullptr;
  if (const auto* like = std::get_if<LikeLayout>(&impl.layout)) {
    placed = &impl.like(*like->like, selected.name, tensor.shape);
  } else if (std::holds_alternative<KeepLayout>(impl.layout)) {
    placed = &impl.followed(impl.source, tensor);
  } else {
    placed = &impl.placed(selected.name, tensor.shape);
  }
  for (const RankPiece& piece : placed->pieces) {
    for (const Box& box : piece.boxes) {
      check_cut(selected, tensor.shape, tensor.dtype, box);
      check_cut(selected, tensor.shape, selected.dtype, box);
    }
  }
  if (const auto* ranks = std::get_if<RanksLayout>(&impl.layout)) {
    impl.was_cut =
        impl.was_cut || (ranks->dim < 0 ? -ranks->dim <= tensor.shape.size() : ranks->dim < tensor.shape.size());
  }
  return {placed->pieces, placed->sharding};
}

void PieceRule::check_used() const {
  const Impl& impl = *impl_;
  const auto* ranks = std::get_if<RanksLayout>(&impl.layout);
  // Dimension 0 is the default, so a checkpoint that contains only scalars is not a mistake.
  if (ranks != nullptr && ranks->dim != 0 && !impl.was_cut) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("cannot shard along dimension {}: no tensor has that dimension", ranks->dim))
        .found(ranks->dim);
  }
  const auto unused = std::ranges::find(impl.used, false);
  if (ranks != nullptr || unused == impl.used.end()) return;
  const std::string& rule = impl.mesh.rules[static_cast<std::size_t>(unused - impl.used.begin())].source;
  throw Error(ErrorCode::kInvalidArgument, fmt::format("'{}' matches no tensor", rule)).found(rule);
}

std::optional<std::int64_t> PieceRule::world_size() const {
  const auto* other = std::get_if<LikeLayout>(&impl_->layout);
  const bool is_kept = std::holds_alternative<KeepLayout>(impl_->layout);
  if ((other == nullptr && !is_kept) || impl_->traits.replicate_whole_tensors) return impl_->ranks();
  return other != nullptr ? other->like->world_size : impl_->source.world_size;
}

const std::vector<Sharding>& PieceRule::shardings() const { return impl_->words; }

}  // namespace shard
