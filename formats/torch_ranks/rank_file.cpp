#include "formats/torch_ranks/rank_file.h"

#include <fmt/format.h>

#include <algorithm>

#include "formats/torch/saved_file.h"
#include "formats/torch_ranks/dtensor_reader.h"
#include "formats/torch_ranks/pickled_object.h"
#include "libshard/catalog/layouts/placement.h"
#include "libshard/catalog/tree.h"
#include "libshard/core/arena.h"
#include "libshard/core/box.h"
#include "libshard/core/checked.h"
#include "libshard/core/error.h"
#include "libshard/core/short_text.h"
#include "libshard/core/value_walk.h"

namespace shard::torch_ranks {

namespace {

constexpr std::string_view kWhat = "tensor in pieces";

std::vector<Dims> read_boxes(Arena& arena, const Value& list, std::string_view what, int dimensions) {
  const std::span<Value* const> items = sequence(list, what);
  arena.charge(Charge::kShards, std::ssize(items));
  std::vector<Dims> boxes;
  for (const Value* item : items) {
    boxes.push_back(dims(arena, *item, what));
    if (boxes.back().size() == dimensions) continue;
    throw malformed(what, fmt::format("{} is not of {} dimensions", to_string(boxes.back()), dimensions))
        .of_kind(FindingKind::kShapeMismatch);
  }
  return boxes;
}

/// \throws Error kCorruption  the box extends past the shape.
void check_inside(Dims offset, Dims size, Dims shape, std::string_view what) {
  for (int d = 0; d < shape.size(); ++d) {
    if (checked_add(offset[d], size[d]) <= shape[d]) continue;
    throw malformed(kWhat,
                    fmt::format("a piece of {} at {} extends past the {}", to_string(size), to_string(offset), what))
        .of_kind(FindingKind::kOutOfBounds)
        .expected(to_string(shape));
  }
}

class Keeper {
 public:
  Keeper(RankFile& file, const RankFile* like, Arena& to) : file_(file), like_(like), to_(to), values_(to) {}

  void run() {
    file_.root = nullptr;
    for (std::size_t i = 0; i < file_.leaves.size(); ++i) keep(file_.leaves[i], i);
    for (torch_save::TensorView& view : file_.plain) {
      keep(view.shape);
      keep(view.strides);
      for (std::string_view* text : {&view.key, &view.location, &view.device}) keep(*text);
    }
  }

 private:
  void keep(std::string_view& text) { text = to_.copy(text); }
  void keep(Dims& dims) { dims = to_.dims(dims); }

  void keep(RankLeaf& leaf, std::size_t position) {
    keep(leaf.name);
    keep(leaf.path);
    leaf.node = leaf.kind == LeafKind::kObject ? values_.copy(*leaf.node) : nullptr;
    if (leaf.kind != LeafKind::kShardedTensor) return;
    ShardedTensorValue& tensor = file_.sharded[leaf.item];
    keep(tensor.shape);
    for (LocalShard& local : tensor.local) {
      keep(local.box);
      local.tensor = values_.copy(*local.tensor);
    }
    for (std::string_view& placement : tensor.spec.placements) keep(placement);
    keep(tensor.all, boxes_like(leaf, position));
  }

  /// Keeps the path. Leaves of one container share its parts.
  void keep(Path& path) {
    if (path.empty()) return;
    const std::size_t depth = path.size() - 1;
    bool is_same = container_.size() == depth;
    for (std::size_t i = 0; is_same && i < depth; ++i) is_same = container_[i] == path[i];
    if (!is_same) {
      const std::span<PathPart> parts = to_.array<PathPart>(depth);
      for (std::size_t i = 0; i < depth; ++i) parts[i] = kept(path[i]);
      container_ = parts;
    }
    path = Path(container_, kept(path.back()));
  }

  PathPart kept(const PathPart& part) { return part.is_index ? part : PathPart::of_key(to_.copy(part.key())); }

  void keep(ShardBox& box) {
    keep(box.offsets);
    keep(box.sizes);
    keep(box.placement);
  }

  void keep(SharedBoxes& boxes, const SharedBoxes* like) {
    if (like != nullptr && std::ranges::equal(boxes, *like)) {
      boxes = *like;
      return;
    }
    std::vector<ShardBox> own = boxes;
    for (ShardBox& box : own) keep(box);
    boxes = std::move(own);
  }

  const SharedBoxes* boxes_like(const RankLeaf& leaf, std::size_t position) const {
    if (like_ == nullptr || position >= like_->leaves.size()) return nullptr;
    const RankLeaf& other = like_->leaves[position];
    return other.kind == leaf.kind && other.name == leaf.name ? &like_->sharded[other.item].all : nullptr;
  }

  RankFile& file_;
  const RankFile* like_;
  Arena& to_;
  ValueCopier values_;
  std::span<const PathPart> container_;  ///< The container of the last path that was kept.
};

/// Copies everything to which the file's leaves refer into `to`, so that the arena of its tree can be released: each
/// rank's tree names the shards of all ranks. Lists of shards that equal those of the same leaf of `like` are shared
/// with it.
/// \returns false, without changes, if the tree is needed (that of rank 0) or is small (without ShardedTensors). Cost:
///   linear in the leaves and their shards.
bool keep_without_tree(RankFile& file, const RankFile* like, Arena& to) {
  const bool is_needed = !file.rank || *file.rank == 0;
  const bool is_in_tree =
      !file.dtensors.empty() || !file.placed.empty() ||
      std::ranges::any_of(file.plain, [](const torch_save::TensorView& view) { return view.inside.has_value(); });
  if (is_needed || is_in_tree || file.sharded.empty()) return false;
  Keeper(file, like, to).run();
  return true;
}

using torch_save::TensorView;

/// The pieces that `value` records if it rebuilds a tensor with such attributes; nothing for any other value.
/// \throws Error kCorruption  its attributes contradict one another.
std::optional<PlacedTensorValue> as_placed_tensor(Arena& arena, const Value& value) {
  // torch._tensor._rebuild_from_type_v2(function, class, arguments, state)
  const bool has_state = value.is_call_of("torch._tensor", "_rebuild_from_type_v2") && value.items().size() == 4 &&
                         value.items()[3]->kind == ValueKind::kDict;
  if (!has_state) return std::nullopt;
  const Value& state = *value.items()[3];
  const Value *shape = pickle::entry(state, "global_shape"), *offsets = pickle::entry(state, "global_offsets"),
              *places = pickle::entry(state, "local_offsets"), *sizes = pickle::entry(state, "local_sizes");
  if (shape == nullptr || offsets == nullptr || places == nullptr || sizes == nullptr) return std::nullopt;
  const std::optional<torch_save::TensorView> view = torch_save::as_tensor(arena, value);
  if (!view) return std::nullopt;
  PlacedTensorValue tensor;
  tensor.view = *view;
  tensor.requires_grad = view->requires_grad;
  tensor.shape = dims(arena, *shape, "global shape");
  const int dimensions = tensor.shape.size();
  const std::vector<Dims> at = read_boxes(arena, *offsets, "global offset", dimensions);
  const std::vector<Dims> from = read_boxes(arena, *places, "local offset", dimensions);
  const std::vector<Dims> size = read_boxes(arena, *sizes, "local size", dimensions);
  if (at.size() != from.size() || at.size() != size.size() || view->shape.size() != dimensions) {
    throw malformed(kWhat,
                    fmt::format("its attributes describe {}, {} and {} pieces", at.size(), from.size(), size.size()))
        .of_kind(FindingKind::kShapeMismatch);
  }
  for (std::size_t i = 0; i < at.size(); ++i) {
    check_inside(at[i], size[i], tensor.shape, "tensor");
    check_inside(from[i], size[i], view->shape, "buffer");
    tensor.pieces.push_back({at[i], size[i], from[i]});
  }
  return tensor;
}

class LeafReader {
 public:
  /// The result is stored in `arena`, and refers to the tree.
  LeafReader(Arena& arena, torch_save::SavedFiles& files, RankFile& file, const RankRoot& root)
      : arena_(arena),
        file_(file),
        root_(root.keys),
        takes_beside_(root.takes_beside),
        dtensors_(arena, [&files, number = file.number](
                             const TensorView& view) { return files.integers(number, view, kMaxRanks); }),
        hidden_(arena) {}

  void read() {
    visit_leaves(
        arena_, *file_.root, [](const Value&) { return false; },
        [this](const TreeLeaf& leaf) {
          try {
            visit(leaf);
          } catch (const Error& error) {
            throw named(error, leaf.name);
          }
        });
  }

 private:
  /// Whether a leaf is below the root, at any deeper level.
  bool is_inside(const TreeLeaf& leaf) const {
    if (leaf.path.size() <= root_.size()) return root_.empty();
    for (std::size_t i = 0; i < root_.size(); ++i) {
      if (leaf.path[i].key() != root_[i]) return false;
    }
    return true;
  }

  void leave_root(RankLeaf& leaf, const Path& full) const {
    if (root_.empty()) return;
    for (const std::string& key : root_) leaf.name.remove_prefix(key.size() + 1);
    leaf.path = compact_path(full.without_first(root_.size()), leaf.name);
  }

  void visit(const TreeLeaf& tree_leaf) {
    const bool is_outside = !is_inside(tree_leaf);
    if (is_outside && !takes_beside_) return;
    RankLeaf leaf{tree_leaf.name, compact_path(tree_leaf.path, tree_leaf.name), tree_leaf.value, LeafKind::kObject};
    leaf.lost_attributes = torch_save::drop_attributes(arena_, *tree_leaf.value, hidden_);
    const bool wrapped = torch_save::is_parameter(*tree_leaf.value, hidden_);
    Value& node = wrapped ? *tree_leaf.value->items()[0] : *tree_leaf.value;
    if (read_tensor(node, leaf)) {
      if (is_outside) return;
      leave_root(leaf, tree_leaf.path);
      leaf.node = &node;
      if (wrapped) leaf.requires_grad = tree_leaf.value->items()[1]->boolean();
      leaf.has_attributes = wrapped && torch_save::has_attributes(*tree_leaf.value);
    }
    file_.leaves.push_back(leaf);
  }

  bool read_tensor(Value& node, RankLeaf& leaf) {
    if (auto sharded = as_sharded_tensor(arena_, node)) {
      claim(leaf.name, sharded->group.rank, sharded->group.world_size, true);
      if (!file_.group) file_.group = sharded->group;
      file_.has_several_groups = file_.has_several_groups || sharded->group != *file_.group;
      const auto is_foreign = [this](const LocalShard& shard) { return is_foreign_tensor(*shard.tensor); };
      if (std::ranges::any_of(sharded->local, is_foreign)) return false;
      keep(leaf, LeafKind::kShardedTensor, file_.sharded, std::move(*sharded));
    } else if (auto dtensor = dtensors_.read(node)) {
      claim(leaf.name, rank_of(*dtensor), dtensor->world_size, false);
      if (is_foreign_tensor(*dtensor->local)) return false;
      keep(leaf, LeafKind::kDTensor, file_.dtensors, std::move(*dtensor));
    } else if (auto placed = as_placed_tensor(arena_, node)) {
      keep(leaf, LeafKind::kPlaced, file_.placed, std::move(*placed));
    } else if (const auto view = torch_save::as_tensor(arena_, node)) {
      leaf.lost_attributes = leaf.lost_attributes || view->has_attributes;
      keep(leaf, LeafKind::kPlain, file_.plain, *view);
    } else {
      return false;
    }
    return true;
  }

  /// True for a shard of an unsupported subclass. The whole tensor is then an object, which no writer accepts.
  bool is_foreign_tensor(const Value& local) const {
    return torch_save::unsupported_tensor_kind(local) == "subclass" && !torch_save::as_tensor(arena_, local);
  }

  template <class Item>
  void keep(RankLeaf& leaf, LeafKind kind, std::vector<Item>& items, Item item) {
    leaf.kind = kind;
    leaf.requires_grad = item.requires_grad;
    leaf.item = static_cast<std::uint32_t>(items.size());
    items.push_back(std::move(item));
  }

  /// The rank by its mesh and coordinate; nothing for a rank that is not on the mesh.
  static std::optional<std::int64_t> rank_of(const DTensorValue& tensor) {
    if (tensor.coordinate.size() != tensor.sharding.mesh.size()) return std::nullopt;
    const std::size_t index = index_on_mesh(tensor.sharding.mesh, tensor.coordinate);
    return tensor.sharding.ranks.empty() ? static_cast<std::int64_t>(index) : tensor.sharding.ranks[index];
  }

  void claim(std::string_view name, std::optional<std::int64_t> rank, std::int64_t world_size, bool is_exact) {
    if (rank && file_.rank && *rank != *file_.rank) {
      throw Error(ErrorCode::kCorruption, fmt::format("'{}' records that rank {} wrote it, '{}' that rank {} did",
                                                      rank_from_, *file_.rank, name, *rank))
          .of_kind(FindingKind::kRankMismatch)
          .expected(*file_.rank)
          .found(*rank);
    }
    if (rank && !file_.rank) {
      file_.rank = rank;
      rank_from_ = name;
    }
    if (is_exact ? (file_.is_exact && file_.world_size != world_size) || file_.world_size > world_size
                 : file_.is_exact && world_size > file_.world_size) {
      throw Error(ErrorCode::kCorruption, fmt::format("'{}' was saved by {}, '{}' by {}", world_from_,
                                                      plural(file_.world_size, "rank"), name, world_size))
          .of_kind(FindingKind::kWorldSizeMismatch)
          .expected(file_.world_size)
          .found(world_size);
    }
    if (world_size > file_.world_size) {
      file_.world_size = world_size;
      world_from_ = name;
    }
    file_.is_exact = file_.is_exact || is_exact;
  }

  Arena& arena_;
  RankFile& file_;
  std::span<const std::string> root_;
  bool takes_beside_;
  DTensorReader dtensors_;
  torch_save::HiddenTensors hidden_;
  std::string_view rank_from_, world_from_;
};

}  // namespace

std::string_view name_of(LeafKind kind) {
  constexpr std::string_view kNames[] = {"a ShardedTensor", "a DTensor", "a tensor in pieces", "a plain tensor",
                                         "an object"};
  return kNames[static_cast<std::size_t>(kind)];
}

RankFile read_rank_file(Catalog& catalog, torch_save::SavedFiles& files, const std::string& name, const RankRoot& root,
                        const RankFile* like) {
  RankFile file;
  const auto tree = std::make_shared<Arena>(catalog.arena->budget());
  file.root = files.add(name, tree.get());
  file.number = static_cast<std::uint32_t>(catalog.files.size() - 1);
  try {
    LeafReader(*tree, files, file, root).read();
  } catch (Error& error) {
    catalog.arena->adopt(tree);  // `files` still refers to the tree's arena.
    throw error.in_file(catalog.files[file.number].path);
  }
  const bool is_zip = files.version(file.number).starts_with("zip");  // Files of other kinds refer to their tree.
  if (!is_zip || !keep_without_tree(file, like, *catalog.arena)) catalog.arena->adopt(tree);
  for (const DTensorValue& tensor : file.dtensors) {
    const Sharding& sharding = tensor.sharding;
    if (file.mesh == nullptr || mesh_size(sharding.mesh) > mesh_size(file.mesh->mesh)) file.mesh = &sharding;
  }
  return file;
}

}  // namespace shard::torch_ranks
