#include "formats/torch_ranks/writer.h"

#include <fmt/format.h>

#include <algorithm>

#include "formats/torch/zips_writer.h"
#include "formats/torch_ranks/shardings.h"
#include "formats/torch_ranks/unwrap_parameters.h"
#include "formats/torch_ranks/written_rank.h"
#include "libshard/catalog/layout.h"
#include "libshard/core/box.h"
#include "libshard/core/error.h"
#include "libshard/core/first_names.h"

namespace shard::torch_ranks {

namespace {

constexpr std::string_view kLayoutName = "layout.json";

Error not_describable(const Tensor& tensor, const std::string& message) {
  Error error(ErrorCode::kUnsupported, message);
  error.of_tensor(tensor.name);
  return error;
}

/// A ShardedTensor's metadata has each element once.
void check_sharded_tensor(const Catalog& target, const Tensor& tensor) {
  const std::span<const Chunk> chunks = target.chunks_of(tensor);
  for (std::size_t i = 1; i < chunks.size(); ++i) {
    if (chunks[i].offsets != chunks[i - 1].offsets || is_empty(chunks[i].sizes) || is_empty(chunks[i - 1].sizes))
      continue;
    throw not_describable(tensor, fmt::format("'{}' has replicas, which a ShardedTensor cannot have", tensor.name))
        .found(fmt::format("one box on ranks {} and {}", target.stored_of(chunks[i - 1]).rank,
                           target.stored_of(chunks[i]).rank))
        .suggest(Remedy::kHoldAs, "dtensor");
  }
}

/// Placements on a mesh of all ranks, one local tensor on each.
void check_words(const Catalog& target, const Tensor& tensor) {
  if (tensor.sharding == kNoIndex) {
    throw not_describable(tensor, fmt::format("'{}' is cut into boxes that no placement describes", tensor.name))
        .suggest(Remedy::kHoldAs, "sharded_tensor")
        .suggest(Remedy::kUseMesh);
  }
  const std::size_t ranks = target.files.size();
  const std::vector<std::int64_t> of_mesh = mesh_ranks(target.shardings[tensor.sharding]);
  if (of_mesh.size() == ranks) return;
  throw not_describable(tensor,
                        fmt::format("'{}' lies on a mesh of {} of {} ranks", tensor.name, of_mesh.size(), ranks))
      .because("the file of every rank must hold a part of it")
      .suggest(Remedy::kHoldAs, "sharded_tensor")
      .suggest(Remedy::kUseMesh);
}

/// DTensor's placements are cuts as torch.chunk makes them.
void check_dtensor(const Catalog& target, const Tensor& tensor) {
  check_words(target, tensor);
  const std::vector<Placement>& placements = target.shardings[tensor.sharding].placements;
  const auto other =
      std::ranges::find_if(placements, [](const Placement& each) { return each.split != CutRule::kChunk; });
  if (other == placements.end()) return;
  throw not_describable(tensor, fmt::format("'{}' is cut into parts that a DTensor cannot have", tensor.name))
      .because("torch cuts DTensors by the rule of torch.chunk only")
      .found(to_string(*other))
      .suggest(Remedy::kHoldAs, "plain")
      .suggest(Remedy::kHoldAs, "sharded_tensor");
}

/// The axes of a layout document have names.
std::vector<MeshAxis> named(std::vector<MeshAxis> mesh) {
  if (mesh.size() == 1 && mesh[0].name.empty()) mesh[0].name = "rank";
  if (std::ranges::none_of(mesh, [](const MeshAxis& axis) { return axis.name.empty(); })) return mesh;
  for (std::size_t i = 0; i < mesh.size(); ++i) mesh[i].name = fmt::format("axis{}", i);
  return mesh;
}

class RanksWriter final : public torch_save::ZipsWriter {
 public:
  explicit RanksWriter(RankFiles kind) : kind_(kind) {}

  void place(Catalog& target) override {
    torch_save::check_contents(target);
    const std::vector<bool> is_cut = find_cut_tensors(target);
    for (std::size_t i = 0; i < target.tensors.size(); ++i) {
      if (is_cut[i]) check_tensor(target, target.tensors[i]);
    }
    target.rank_files = kind_;
    set_ = common_parts(target, is_cut);
    for (std::uint32_t rank = 0; rank < set_->ranks; ++rank) {
      place_zip(target, fmt::format("rank-{:05}-of-{:05}.pt", rank, set_->ranks));
    }
    // Files in which nothing is cut would not say that they are ranks' either.
    const bool is_any_cut = std::ranges::find(is_cut, true) != is_cut.end();
    if (kind_ == RankFiles::kPlain || !is_any_cut) place_layout(target, is_cut);
  }

  bool is_folder() const override { return true; }

 private:
  std::unique_ptr<WrittenSet> common_parts(Catalog& target, const std::vector<bool>& is_cut) const {
    auto set = std::make_unique<WrittenSet>(target, kind_, is_cut);
    set->root = target.root;
    if (kind_ == RankFiles::kPlain) return set;
    FirstNames lost;
    set->root = unwrap_parameters(*target.arena, *target.root, is_cut, set->is_parameter,
                                  [&lost](std::string_view name) { lost.add(name); });
    if (lost.count() > 0) {
      target.warnings.push_back(
          fmt::format("tensors are cut and written without the attributes of their Parameters: {}", lost.text()));
    }
    return set;
  }

  torch_save::PlacedZip::DumpPickle pickle_of(const Catalog& target, std::uint32_t rank) override {
    return [this, &target, rank](const pickle::Sink& sink) { WrittenRank(target, *set_, rank, zip(rank)).dump(sink); };
  }

  void check_tensor(const Catalog& target, const Tensor& tensor) const {
    switch (kind_) {
      case RankFiles::kShardedTensor:
        return check_sharded_tensor(target, tensor);
      case RankFiles::kDTensor:
        return check_dtensor(target, tensor);
      case RankFiles::kPlain:
        return check_words(target, tensor);
    }
  }

  /// A document has one mesh, whose coordinates are the ranks in order.
  static std::vector<MeshAxis> common_mesh(const Catalog& target, const std::vector<bool>& is_cut) {
    const std::vector<MeshAxis>* mesh = nullptr;
    for (std::size_t i = 0; i < is_cut.size(); ++i) {
      if (!is_cut[i]) continue;
      const Tensor& tensor = target.tensors[i];
      const Sharding& sharding = target.shardings[tensor.sharding];
      if (mesh != nullptr && *mesh != sharding.mesh) {
        throw not_describable(tensor, fmt::format("'{}' lies on another mesh than the tensors before it", tensor.name))
            .because("a layout document has one mesh");
      }
      if (!std::ranges::is_sorted(sharding.ranks)) {
        throw not_describable(tensor, fmt::format("'{}' lies on a mesh whose ranks are not in order", tensor.name))
            .because("a layout document cannot say so");
      }
      mesh = &sharding.mesh;
    }
    if (mesh == nullptr) return {{"rank", static_cast<std::int64_t>(target.files.size())}};
    return named(*mesh);
  }

  void place_layout(Catalog& target, const std::vector<bool>& is_cut) {
    const std::vector<MeshAxis> mesh = common_mesh(target, is_cut);
    std::vector<PlacedName> names;
    for (std::size_t i = 0; i < is_cut.size(); ++i) {
      const Tensor& tensor = target.tensors[i];
      // Rules go by name: of two paths with one name both must be cut alike. They are neighbours.
      const bool is_second = i > 0 && tensor.name == target.tensors[i - 1].name;
      if (is_second &&
          (is_cut[i] != is_cut[i - 1] || (is_cut[i] && tensor.sharding != target.tensors[i - 1].sharding))) {
        throw not_describable(tensor, fmt::format("two tensors are named '{}' and cut differently", tensor.name))
            .because("a layout document goes by name");
      }
      if (is_cut[i] && !is_second) names.push_back({tensor.name, target.shardings[tensor.sharding].placements});
    }
    const std::string path = fmt::format("rank-{{rank}}-of-{:05}.pt", target.files.size());
    place_text(target, std::string(kLayoutName), dump_layout_document(path, mesh, names));
  }

  const RankFiles kind_;
  std::unique_ptr<WrittenSet> set_;
};

}  // namespace

FormatTraits traits_for(const WriteOptions& options) {
  return {.name = "torch-ranks",
          .pieces = true,
          .one_box_per_item = options.rank_files.value_or(RankFiles::kShardedTensor) == RankFiles::kShardedTensor,
          .keeps_replicas = true,
          .keeps_empty = true,
          .uncut_on_all = true,
          .objects = true,
          .sharing = true,
          .aliases = true,
          .many_files = false};
}

std::unique_ptr<Writer> make_writer(const WriteOptions& options) {
  if (options.single_file) {
    throw Error(ErrorCode::kInvalidArgument, "cannot write torch-ranks as one file: it is a folder")
        .suggest(Remedy::kNameFolder);
  }
  return std::make_unique<RanksWriter>(options.rank_files.value_or(RankFiles::kShardedTensor));
}

}  // namespace shard::torch_ranks
