#include "formats/torch_ranks/rank_file.h"

#include <fmt/format.h>

#include <algorithm>

#include "formats/torch/saved_file.h"
#include "formats/torch_ranks/dtensor_reader.h"
#include "formats/torch_ranks/kept_leaves.h"
#include "formats/torch_ranks/pickled_object.h"
#include "formats/torch_ranks/shardings.h"
#include "libshard/catalog/tree.h"
#include "libshard/core/error.h"
#include "libshard/core/plural.h"

namespace shard::torch_ranks {

namespace {

using torch_save::TensorView;

class LeafReader {
 public:
  /// What is read lies in `arena`, and refers to the tree.
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
  /// Whether a leaf lies below the root, and further down than it.
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
      keep(leaf, LeafKind::kPlain, file_.plain, *view);
    } else {
      return false;
    }
    return true;
  }

  /// A shard of a subclass that is not read: the whole tensor is then an object, which no writer takes.
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

  /// By its mesh and coordinate; nothing for a rank that is not on the mesh.
  static std::optional<std::int64_t> rank_of(const DTensorValue& tensor) {
    if (tensor.coordinate.size() != tensor.sharding.mesh.size()) return std::nullopt;
    std::size_t index = 0;
    for (std::size_t axis = 0; axis < tensor.coordinate.size(); ++axis) {
      index = index * static_cast<std::size_t>(tensor.sharding.mesh[axis].size) +
              static_cast<std::size_t>(tensor.coordinate[axis]);
    }
    return tensor.sharding.ranks.empty() ? static_cast<std::int64_t>(index) : tensor.sharding.ranks[index];
  }

  void claim(std::string_view name, std::optional<std::int64_t> rank, std::int64_t world_size, bool is_exact) {
    if (rank && file_.rank && *rank != *file_.rank) {
      throw Error(ErrorCode::kCorruption, fmt::format("'{}' says that rank {} wrote it, '{}' that rank {} did",
                                                      rank_teller_, *file_.rank, name, *rank))
          .of_kind(FindingKind::kRankMismatch)
          .expected(*file_.rank)
          .found(*rank);
    }
    if (rank && !file_.rank) {
      file_.rank = rank;
      rank_teller_ = name;
    }
    if (is_exact ? (file_.is_exact && file_.world_size != world_size) || file_.world_size > world_size
                 : file_.is_exact && world_size > file_.world_size) {
      throw Error(ErrorCode::kCorruption, fmt::format("'{}' is of a save of {}, '{}' of one of {}", world_teller_,
                                                      plural(file_.world_size, "rank"), name, world_size))
          .of_kind(FindingKind::kWorldSizeMismatch)
          .expected(file_.world_size)
          .found(world_size);
    }
    if (world_size > file_.world_size) {
      file_.world_size = world_size;
      world_teller_ = name;
    }
    file_.is_exact = file_.is_exact || is_exact;
  }

  Arena& arena_;
  RankFile& file_;
  std::span<const std::string> root_;
  bool takes_beside_;
  DTensorReader dtensors_;
  torch_save::HiddenTensors hidden_;
  std::string_view rank_teller_, world_teller_;
};

}  // namespace

std::string_view name_of(LeafKind kind) {
  switch (kind) {
    case LeafKind::kShardedTensor:
      return "a ShardedTensor";
    case LeafKind::kDTensor:
      return "a DTensor";
    case LeafKind::kPlaced:
      return "a tensor in pieces";
    case LeafKind::kPlain:
      return "a plain tensor";
    case LeafKind::kObject:
      break;
  }
  return "an object";
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
    catalog.arena->adopt(tree);  // `files` still has the file.
    throw error.in_file(catalog.files[file.number].path);
  }
  const bool is_zip = files.version(file.number).starts_with("zip");  // Others refer to their tree.
  if (!is_zip || !keep_without_tree(file, like, *catalog.arena)) catalog.arena->adopt(tree);
  for (const DTensorValue& tensor : file.dtensors) {
    const Sharding& sharding = tensor.sharding;
    if (file.mesh == nullptr || mesh_size(sharding.mesh) > mesh_size(file.mesh->mesh)) file.mesh = &sharding;
  }
  return file;
}

}  // namespace shard::torch_ranks
