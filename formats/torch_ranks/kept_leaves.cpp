#include "formats/torch_ranks/kept_leaves.h"

#include <algorithm>
#include <vector>

#include "libshard/core/value_copier.h"

namespace shard::torch_ranks {

namespace {

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

  /// Leaves of one container share its parts.
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
  std::span<const PathPart> container_;  ///< Of the last path that was kept.
};

}  // namespace

bool keep_without_tree(RankFile& file, const RankFile* like, Arena& to) {
  const bool is_needed = !file.rank || *file.rank == 0;
  const bool lies_in_tree =
      !file.dtensors.empty() || !file.placed.empty() ||
      std::ranges::any_of(file.plain, [](const torch_save::TensorView& view) { return view.inside.has_value(); });
  if (is_needed || lies_in_tree || file.sharded.empty()) return false;
  Keeper(file, like, to).run();
  return true;
}

}  // namespace shard::torch_ranks
