#include "libshard/catalog/target.h"

#include <fmt/format.h>

#include <algorithm>

#include "libshard/catalog/target_checks.h"
#include "libshard/catalog/target_files.h"
#include "libshard/catalog/target_pieces.h"
#include "libshard/catalog/target_sharing.h"
#include "libshard/catalog/tree.h"
#include "libshard/core/box.h"
#include "libshard/core/checked.h"
#include "libshard/core/error.h"

namespace shard {

namespace {

class TargetBuilder {
 public:
  TargetBuilder(const Catalog& source, const Selection& selection, const FormatTraits& traits)
      : source_(source), selection_(selection), traits_(traits), sharing_(source, selection, traits.sharing) {
    target_.format = traits.name;
    target_.metadata = source.metadata;
    if (selection.renamed) target_.metadata.erase(kAliasesNote);  // It would name what is not there.
    target_.locations = source.locations;
    target_.borrowed = source.borrowed;
    target_.borrowed.insert(target_.borrowed.end(), {source.arena, selection.arena});
    target_.rank_files = source.rank_files;
    target_.tensors.reserve(selection.tensors.size());
    target_.stored.reserve(selection.tensors.size());
    target_.chunks.reserve(selection.tensors.size());
    target_.storages.reserve(selection.tensors.size());
  }

  Catalog cut(const Layout& layout) {
    PieceRule rule(source_, layout, traits_);
    for (std::size_t i = 0; i < selection_.tensors.size(); ++i) add_cut_tensor(i, rule.pieces(selection_.tensors[i]));
    rule.check_used();
    target_.warnings = sharing_.warnings(true);
    warn_of_aliases();
    target_.world_size = rule.world_size();
    target_.shardings = rule.shardings();
    add_objects();
    make_rank_files();
    return std::move(target_);
  }

  Catalog whole(const Layout& layout) {
    target_.warnings = sharing_.warnings(false);
    place_units(layout);
    for (std::size_t i = 0; i < selection_.tensors.size(); ++i) add_whole(i);
    add_objects();
    if (traits_.pieces) target_.world_size = static_cast<std::int64_t>(target_.files.size());
    return std::move(target_);
  }

 private:
  const Tensor& source_tensor(std::size_t selected) const {
    return source_.tensors[selection_.tensors[selected].source];
  }

  Tensor& add_tensor(std::size_t selected) {
    const SelectedTensor& from = selection_.tensors[selected];
    Tensor tensor;
    tensor.name = from.name;
    tensor.path = from.path;
    tensor.shape = source_tensor(selected).shape;
    tensor.first_chunk = static_cast<std::uint32_t>(target_.chunks.size());
    tensor.alias_of = sharing_.alias(selected);
    tensor.source = from.source;
    tensor.dtype = from.dtype;
    target_.tensors.push_back(tensor);
    return target_.tensors.back();
  }

  /// What a stored tensor takes over from the source's first one.
  StoredTensor make_stored(std::size_t selected, Dims shape) const {
    StoredTensor stored;
    stored.shape = shape;
    stored.dtype = selection_.tensors[selected].dtype;
    const Tensor& tensor = source_tensor(selected);
    if (tensor.chunk_count > 0)
      stored.requires_grad = source_.stored[source_.chunks[tensor.first_chunk].stored].requires_grad;
    return stored;
  }

  std::uint32_t add_storage(std::size_t selected, std::int64_t bytes, std::uint32_t file) {
    Storage storage;
    storage.bytes = bytes;
    storage.file = file;
    const Tensor& tensor = source_tensor(selected);
    if (tensor.chunk_count > 0) {
      storage.location = source_.storages[source_.stored[source_.chunks[tensor.first_chunk].stored].storage].location;
    }
    target_.storages.push_back(storage);
    return static_cast<std::uint32_t>(target_.storages.size() - 1);
  }

  std::uint32_t add_stored(const StoredTensor& stored) {
    target_.stored.push_back(stored);
    return static_cast<std::uint32_t>(target_.stored.size() - 1);
  }

  static std::int64_t bytes_of(Dims sizes, DType dtype) { return checked_bytes(checked_numel(sizes), dtype); }

  // Pieces. Until all ranks are known, Storage::file is a rank.

  void add_cut_tensor(std::size_t selected, const TensorPieces& placed) {
    Tensor& tensor = add_tensor(selected);
    tensor.sharding = placed.sharding;
    const std::size_t first_storage = target_.storages.size();
    for (const RankPiece& piece : placed.pieces) {
      if (traits_.one_box_per_item || piece.boxes.empty()) {
        for (const Box& box : piece.boxes) add_box(selected, piece.rank, box);
        if (piece.boxes.empty()) add_empty(selected, piece);
      } else {
        add_joined(selected, piece);
      }
    }
    tensor.chunk_count = static_cast<std::uint32_t>(target_.chunks.size()) - tensor.first_chunk;
    const auto order = [this](const Chunk& a, const Chunk& b) {
      const auto by_offsets = std::lexicographical_compare_three_way(a.offsets.begin(), a.offsets.end(),
                                                                     b.offsets.begin(), b.offsets.end());
      return by_offsets != 0 ? by_offsets < 0 : target_.stored[a.stored].rank < target_.stored[b.stored].rank;
    };
    std::ranges::stable_sort(std::span(target_.chunks).subspan(tensor.first_chunk), order);
    if (traits_.sharing && tensor.alias_of != kNoIndex) share_pieces(tensor, first_storage);
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
      aliases_apart_.push_back(fmt::format("'{}'", tensor.name));
      return;
    }
    for (std::uint32_t i = 0; i < tensor.chunk_count; ++i) {
      target_.stored[target_.chunks[tensor.first_chunk + i].stored].storage =
          target_.stored[target_.chunks[first.first_chunk + i].stored].storage;
    }
    target_.storages.resize(first_storage);
  }

  void warn_of_aliases() {
    if (aliases_apart_.empty()) return;
    const std::size_t shown = std::min<std::size_t>(3, aliases_apart_.size());
    target_.warnings.push_back(fmt::format(
        "{} aliases are stored as separate copies because they are sharded differently from their originals: {}{}",
        aliases_apart_.size(), fmt::join(std::span(aliases_apart_).first(shown), ", "),
        shown < aliases_apart_.size() ? ", ..." : ""));
  }

  /// A stored tensor, row-major in a storage of its own, for one rank.
  std::uint32_t add_rank_tensor(std::size_t selected, std::int64_t rank, Dims sizes) {
    StoredTensor stored = make_stored(selected, sizes);
    stored.strides = row_major_strides(*target_.arena, sizes);
    stored.rank = static_cast<std::int32_t>(rank);
    stored.storage = add_storage(selected, bytes_of(sizes, stored.dtype), static_cast<std::uint32_t>(rank));
    return add_stored(stored);
  }

  void add_box(std::size_t selected, std::int64_t rank, const Box& box) {
    const auto dims = static_cast<std::size_t>(box.dims);
    Chunk chunk;
    chunk.offsets = target_.arena->dims(std::span(box.offset).first(dims));
    chunk.sizes = target_.arena->dims(std::span(box.size).first(dims));
    chunk.stored = add_rank_tensor(selected, rank, chunk.sizes);
    chunk.strides = target_.stored[chunk.stored].strides;
    target_.chunks.push_back(chunk);
  }

  /// A piece without elements lies past the end of the dimensions in which nothing was left for it.
  void add_empty(std::size_t selected, const RankPiece& piece) {
    const Dims shape = source_tensor(selected).shape;
    std::vector<std::int64_t> offsets(piece.local_sizes.size());
    for (std::size_t d = 0; d < offsets.size(); ++d)
      offsets[d] = piece.local_sizes[d] == 0 ? shape[static_cast<int>(d)] : 0;
    Chunk chunk;
    chunk.offsets = target_.arena->dims(offsets);
    chunk.sizes = target_.arena->dims(piece.local_sizes);
    chunk.stored = add_rank_tensor(selected, piece.rank, chunk.sizes);
    chunk.strides = target_.stored[chunk.stored].strides;
    target_.chunks.push_back(chunk);
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

  /// One file per rank that holds something, or where uncut tensors are on all of them per rank; in rank order.
  void make_rank_files() {
    std::vector<std::uint32_t> ranks;
    if (traits_.uncut_on_all) {
      for (std::uint32_t rank = 0; rank < target_.world_size.value_or(1); ++rank) ranks.push_back(rank);
    }
    for (const Storage& storage : target_.storages) ranks.push_back(storage.file);
    if (!target_.objects.empty()) ranks.push_back(0);
    std::ranges::sort(ranks);
    ranks.erase(std::ranges::unique(ranks).begin(), ranks.end());
    for (const std::uint32_t rank : ranks) target_.files.push_back({"", 0, static_cast<int>(rank)});
    for (Storage& storage : target_.storages) {
      storage.file = static_cast<std::uint32_t>(std::ranges::lower_bound(ranks, storage.file) - ranks.begin());
    }
  }

  // Whole tensors.

  /// Tensors that share a storage are one unit, led by the first of them, and go to its file.
  void place_units(const Layout& layout) {
    const std::size_t count = selection_.tensors.size();
    std::vector<std::uint32_t> unit_of(count), unit_of_storage(sharing_.storages().size(), kNoIndex);
    std::vector<std::int64_t> unit_bytes;
    const auto add_unit = [&](std::int64_t bytes) {
      unit_bytes.push_back(bytes);
      return static_cast<std::uint32_t>(unit_bytes.size() - 1);
    };
    for (std::size_t i = 0; i < count; ++i) {
      if (const std::uint32_t shared = sharing_.shared(i); shared != kNoIndex) {
        if (unit_of_storage[shared] == kNoIndex) unit_of_storage[shared] = add_unit(sharing_.storages()[shared].bytes);
        unit_of[i] = unit_of_storage[shared];
      } else if (traits_.sharing && sharing_.alias(i) != kNoIndex) {
        unit_of[i] = unit_of[sharing_.alias(i)];
      } else {
        unit_of[i] = add_unit(bytes_of(source_tensor(i).shape, selection_.tensors[i].dtype));
      }
    }
    const std::vector<std::uint32_t> file_of_unit = assign_files(layout, unit_bytes);
    file_of_.resize(count);
    for (std::size_t i = 0; i < count; ++i) file_of_[i] = file_of_unit[unit_of[i]];
    const std::uint32_t files = file_of_unit.empty() ? 1 : std::ranges::max(file_of_unit) + 1;
    for (std::uint32_t file = 0; file < files; ++file) target_.files.push_back({"", 0, static_cast<int>(file)});
    if (files > 1 && !traits_.many_files) {
      throw Error(ErrorCode::kInvalidArgument, fmt::format("{} is one file, the layout has {}", traits_.name, files));
    }
    storage_of_shared_.assign(sharing_.storages().size(), kNoIndex);
  }

  void add_whole(std::size_t selected) {
    Tensor& tensor = add_tensor(selected);
    tensor.chunk_count = 1;
    StoredTensor stored = make_stored(selected, tensor.shape);
    if (traits_.pieces) stored.rank = static_cast<std::int32_t>(file_of_[selected]);
    if (const std::uint32_t shared = sharing_.shared(selected); shared != kNoIndex) {
      stored.strides = source_.chunks[source_tensor(selected).first_chunk].strides;
      stored.first = sharing_.first(selected);
      stored.storage = shared_storage(selected, shared);
    } else {
      stored.strides = row_major_strides(*target_.arena, tensor.shape);
      const bool is_repeated = traits_.sharing && tensor.alias_of != kNoIndex;
      stored.storage = is_repeated ? storage_of(tensor.alias_of)
                                   : add_storage(selected, bytes_of(tensor.shape, tensor.dtype), file_of_[selected]);
    }
    Chunk chunk;
    chunk.offsets = target_.arena->zeros(tensor.shape.size());
    chunk.sizes = tensor.shape;
    chunk.strides = stored.strides;
    chunk.first = stored.first;
    chunk.stored = add_stored(stored);
    target_.chunks.push_back(chunk);
  }

  std::uint32_t storage_of(std::uint32_t tensor) const {
    return target_.stored[target_.chunks[target_.tensors[tensor].first_chunk].stored].storage;
  }

  std::uint32_t shared_storage(std::size_t selected, std::uint32_t shared) {
    std::uint32_t& storage = storage_of_shared_[shared];
    if (storage != kNoIndex) return storage;
    const SharedStorage& from = sharing_.storages()[shared];
    storage = add_storage(selected, from.bytes, file_of_[selected]);
    target_.storages[storage].whole_copy = true;
    for (const UsedSpan& span : from.spans) {
      target_.storage_copies.push_back({from.from, storage, span.begin, span.to, span.end - span.begin});
    }
    return storage;
  }

  // Objects and the tree.

  void add_objects() {
    if (!traits_.objects) return;
    for (const SelectedObject& object : selection_.objects) {
      target_.objects.push_back({object.name, object.path, source_.objects[object.source].value, -1});
    }
    target_.root = make_root();
  }

  /// In a tree one value may stand for all aliases of a tensor; those that are stored apart need one each.
  bool has_parted_aliases() const {
    if (!aliases_apart_.empty()) return true;
    return std::ranges::any_of(target_.tensors, [this](const Tensor& tensor) {
      return tensor.alias_of == kNoIndex && source_.tensors[tensor.source].alias_of != kNoIndex;
    });
  }

  Value* make_root() {
    const bool is_complete = selection_.tensors.size() == source_.tensors.size() &&
                             selection_.objects.size() == source_.objects.size() && !selection_.renamed;
    if (source_.root != nullptr && is_complete && !has_parted_aliases()) return source_.root;
    std::vector<TreeEntry> entries;
    entries.reserve(target_.tensors.size() + target_.objects.size());
    for (const Tensor& tensor : target_.tensors) {
      entries.push_back({tensor.name, tensor.path, static_cast<std::uint32_t>(entries.size()), nullptr});
    }
    for (const Object& object : target_.objects) entries.push_back({object.name, object.path, kNoIndex, object.value});
    const bool is_pruned = source_.root != nullptr && !selection_.renamed;
    return is_pruned ? prune_tree(*target_.arena, *source_.root, entries) : tree_of_paths(*target_.arena, entries);
  }

  const Catalog& source_;
  const Selection& selection_;
  const FormatTraits& traits_;
  const SharingPlan sharing_;
  std::vector<std::uint32_t> file_of_, storage_of_shared_;
  std::vector<std::string> aliases_apart_;
  Catalog target_;
};

}  // namespace

Catalog make_target(const Catalog& source, const Selection& selection, const Layout& layout,
                    const FormatTraits& traits) {
  const bool is_kept = std::holds_alternative<KeepLayout>(layout);
  if (cuts_tensors(layout) && !is_kept && !traits.pieces) {
    throw Error(ErrorCode::kInvalidArgument, fmt::format("{} holds whole tensors only", traits.name))
        .because("the layout cuts tensors into pieces")
        .suggest(Remedy::kWriteAs, "dcp")
        .suggest(Remedy::kSpreadFiles);
  }
  const bool is_files = std::holds_alternative<ShardsLayout>(layout) || std::holds_alternative<SizeLayout>(layout);
  if (is_files && traits.uncut_on_all) {
    throw Error(ErrorCode::kInvalidArgument, fmt::format("{} has one file for each rank", traits.name))
        .because("a number or size of files can be chosen for whole tensors only")
        .suggest(Remedy::kCutTensors);
  }
  const bool is_cut = cuts_tensors(layout) && traits.pieces;
  check_objects(selection, traits);
  check_names(source, selection, traits, !is_cut);
  TargetBuilder builder(source, selection, traits);
  Catalog target = is_cut ? builder.cut(layout) : builder.whole(is_kept ? Layout(WholeLayout{}) : layout);
  const auto* mesh = std::get_if<MeshLayout>(&layout);
  if (mesh != nullptr && !mesh->file_path.empty()) {
    target.warnings.push_back(
        fmt::format("files.path '{}' of the layout document is not used: {} names its files by rank", mesh->file_path,
                    traits.name));
  }
  return target;
}

}  // namespace shard
