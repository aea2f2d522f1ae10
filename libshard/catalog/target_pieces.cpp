#include "libshard/catalog/target_pieces.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <map>

#include "libshard/core/box.h"
#include "libshard/core/error.h"

namespace shard {

namespace {

std::vector<std::int64_t> to_vector(Dims dims) { return {dims.begin(), dims.end()}; }

bool is_whole(const RankPiece& piece, Dims shape) {
  return piece.boxes.size() == 1 && std::ranges::equal(piece.local_sizes, shape);
}

/// All of a tensor, on rank 0.
RankPiece whole_piece(Dims shape) {
  RankPiece piece;
  piece.local_sizes = to_vector(shape);
  const std::vector<std::int64_t> zeros(piece.local_sizes.size());
  piece.boxes.emplace_back(zeros, piece.local_sizes);
  piece.local_offsets.push_back(zeros);
  return piece;
}

/// The chunks of a checkpoint as pieces. Equal boxes are neighbours in the order of chunks.
std::vector<RankPiece> pieces_of_chunks(const Catalog& catalog, const Tensor& tensor) {
  std::vector<RankPiece> pieces;
  for (const Chunk& chunk : catalog.chunks_of(tensor)) {
    RankPiece piece;
    piece.rank = std::max<std::int64_t>(0, catalog.stored[chunk.stored].rank);
    piece.local_sizes = to_vector(chunk.sizes);
    if (std::ranges::find(chunk.sizes, 0) == chunk.sizes.end()) {
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

/// Elements smaller than a byte are packed: the runs of the innermost cut dimension must begin and end between bytes.
void check_cut(const SelectedTensor& selected, Dims shape, DType dtype, const Box& box) {
  if (dtype_bits(dtype) % 8 == 0) return;
  std::int64_t inner = 1;
  for (int d = shape.size(); d-- > 0;) {
    const auto i = static_cast<std::size_t>(d);
    if (box.size[i] == shape[d]) {
      inner *= shape[d];
      continue;
    }
    if (box.offset[i] * inner % 4 == 0 && box.size[i] * inner % 4 == 0 && shape[d] * inner % 4 == 0) return;
    throw Error(ErrorCode::kUnsupported,
                fmt::format("tensor '{}' of {} {}: a cut at {} is inside a byte", selected.name, to_string(shape),
                            dtype_name(dtype), to_string(box)))
        .of_tensor(selected.name)
        .because("four of its elements share three bytes");
  }
}

}  // namespace

bool cuts_tensors(const Layout& layout) {
  return std::holds_alternative<RanksLayout>(layout) || std::holds_alternative<MeshLayout>(layout) ||
         std::holds_alternative<LikeLayout>(layout) || std::holds_alternative<KeepLayout>(layout);
}

struct PieceRule::Impl {
  Impl(const Catalog& source_catalog, const Layout& given, const FormatTraits& format)
      : source(source_catalog), layout(given), traits(format) {
    if (const auto* ranks = std::get_if<RanksLayout>(&layout)) init_ranks(*ranks);
    if (const auto* placed = std::get_if<MeshLayout>(&layout)) mesh = *placed;
    for (const MeshLayout::Rule& rule : mesh.rules) check_rule(rule);
    used.resize(mesh.rules.size());
  }

  void init_ranks(const RanksLayout& ranks) {
    if (ranks.ranks < 1 || ranks.ranks > kMaxRanks) {
      throw Error(ErrorCode::kInvalidArgument, fmt::format("--ranks {}", ranks.ranks))
          .expected(fmt::format("1 to {}", kMaxRanks))
          .found(ranks.ranks);
    }
    mesh.mesh = {{"", ranks.ranks}};
    mesh.rules = {{"--ranks", [](std::string_view) { return true; }, {{Placement::kShard, ranks.dim, 1}}, {}}};
  }

  void check_rule(const MeshLayout::Rule& rule) const {
    if (rule.placements.size() == mesh.mesh.size()) return;
    throw Error(ErrorCode::kInvalidArgument, fmt::format("'{}' has {} placements, the mesh has {} axes", rule.source,
                                                         rule.placements.size(), mesh.mesh.size()))
        .expected(static_cast<std::int64_t>(mesh.mesh.size()))
        .found(static_cast<std::int64_t>(rule.placements.size()));
  }

  /// The first rule that matches; mesh.rules.size() for none. Later rules count as used when they would have matched.
  std::size_t rule_of(std::string_view name) {
    std::size_t first = mesh.rules.size();
    for (std::size_t i = 0; i < mesh.rules.size(); ++i) {
      if ((used[i] && first < mesh.rules.size()) || !mesh.rules[i].matches(name)) continue;
      used[i] = true;
      first = std::min(first, i);
    }
    return first;
  }

  const std::vector<RankPiece>& placed(std::string_view name, Dims shape) {
    const std::size_t number = rule_of(name);
    const auto [entry, is_new] = cache.try_emplace({number, to_vector(shape)});
    if (!is_new) return entry->second;
    if (number < mesh.rules.size()) {
      const MeshLayout::Rule& rule = mesh.rules[number];
      entry->second = stored(place(shape, mesh.mesh, rule.placements, rule.order), shape);
    } else {
      const std::vector<Placement> replicated(mesh.mesh.size());
      entry->second = stored(place(shape, mesh.mesh, replicated), shape);
    }
    return entry->second;
  }

  const std::vector<RankPiece>& of_chunks(const Catalog& catalog, const Tensor& tensor) {
    current = stored(pieces_of_chunks(catalog, tensor), tensor.shape);
    return current;
  }

  const std::vector<RankPiece>& like(const Catalog& other, std::string_view name, Dims shape) {
    const Tensor* tensor = other.find(name);
    if (tensor == nullptr) {
      throw Error(ErrorCode::kInvalidArgument, fmt::format("--like has no tensor '{}'", name)).of_tensor(name);
    }
    if (tensor->shape == shape) return of_chunks(other, *tensor);
    throw Error(ErrorCode::kInvalidArgument, fmt::format("tensor '{}' has another shape in --like", name))
        .of_tensor(name)
        .expected(to_string(shape))
        .found(to_string(tensor->shape));
  }

  /// Drops what the format does not store.
  std::vector<RankPiece> stored(std::vector<RankPiece> pieces, Dims shape) const {
    const bool is_uncut =
        !pieces.empty() && std::ranges::all_of(pieces, [&](const auto& p) { return is_whole(p, shape); });
    const bool all_replicas = traits.keeps_replicas || (is_uncut && traits.uncut_on_all);
    const auto is_dropped = [&](const RankPiece& piece) {
      return (piece.replica && !all_replicas) || (piece.boxes.empty() && !traits.keeps_empty);
    };
    std::erase_if(pieces, is_dropped);
    if (pieces.empty()) pieces.push_back(whole_piece(shape));
    return pieces;
  }

  const Catalog& source;
  const Layout& layout;
  const FormatTraits& traits;
  MeshLayout mesh;  ///< Of RanksLayout too.
  std::vector<bool> used;
  bool was_cut = false;
  std::map<std::pair<std::size_t, std::vector<std::int64_t>>, std::vector<RankPiece>> cache;
  std::vector<RankPiece> current;
};

PieceRule::PieceRule(const Catalog& source, const Layout& layout, const FormatTraits& traits)
    : impl_(std::make_unique<Impl>(source, layout, traits)) {}

PieceRule::~PieceRule() = default;

std::span<const RankPiece> PieceRule::pieces(const SelectedTensor& selected) {
  Impl& impl = *impl_;
  const Tensor& tensor = impl.source.tensors[selected.source];
  const std::vector<RankPiece>* pieces = nullptr;
  if (const auto* like = std::get_if<LikeLayout>(&impl.layout)) {
    pieces = &impl.like(*like->like, selected.name, tensor.shape);
  } else if (std::holds_alternative<KeepLayout>(impl.layout)) {
    pieces = &impl.of_chunks(impl.source, tensor);
  } else {
    pieces = &impl.placed(selected.name, tensor.shape);
  }
  for (const RankPiece& piece : *pieces) {
    for (const Box& box : piece.boxes) {
      check_cut(selected, tensor.shape, tensor.dtype, box);
      check_cut(selected, tensor.shape, selected.dtype, box);
    }
  }
  if (const auto* ranks = std::get_if<RanksLayout>(&impl.layout)) {
    impl.was_cut =
        impl.was_cut || (ranks->dim < 0 ? -ranks->dim <= tensor.shape.size() : ranks->dim < tensor.shape.size());
  }
  return *pieces;
}

void PieceRule::check_used() const {
  const Impl& impl = *impl_;
  const auto* ranks = std::get_if<RanksLayout>(&impl.layout);
  // Dimension 0 is the default, so that a checkpoint of scalars alone is no mistake.
  if (ranks != nullptr && ranks->dim != 0 && !impl.was_cut) {
    throw Error(ErrorCode::kInvalidArgument, fmt::format("--dim {}: no tensor has that dimension", ranks->dim))
        .found(ranks->dim);
  }
  const auto unused = std::ranges::find(impl.used, false);
  if (ranks != nullptr || unused == impl.used.end()) return;
  const std::string& rule = impl.mesh.rules[static_cast<std::size_t>(unused - impl.used.begin())].source;
  throw Error(ErrorCode::kInvalidArgument, fmt::format("'{}' matches no tensor", rule)).found(rule);
}

std::optional<std::int64_t> PieceRule::world_size() const {
  if (const auto* like = std::get_if<LikeLayout>(&impl_->layout)) return like->like->world_size;
  if (std::holds_alternative<KeepLayout>(impl_->layout)) return impl_->source.world_size;
  std::int64_t ranks = 1;
  for (const MeshAxis& axis : impl_->mesh.mesh) ranks *= axis.size;
  return ranks;
}

}  // namespace shard
