#include <fmt/format.h>

#include <algorithm>
#include <cassert>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "formats/torch/placed_zip.h"
#include "formats/torch/saved_file.h"
#include "formats/torch_ranks/format.h"
#include "formats/torch_ranks/sharded_value_maker.h"
#include "libshard/catalog/catalog.h"
#include "libshard/catalog/layouts/layout.h"
#include "libshard/catalog/tree.h"
#include "libshard/core/box.h"
#include "libshard/core/checked.h"
#include "libshard/core/error.h"
#include "libshard/core/hash_table.h"
#include "libshard/core/key_text.h"
#include "libshard/core/short_text.h"
#include "libshard/core/value.h"
#include "libshard/map/documents/layout_document.h"

namespace shard::torch_ranks {

namespace {

// The pickle of one rank's file, from a target catalog.

/// The stored tensors of each tensor on each rank.
class PiecesByRank {
 public:
  explicit PiecesByRank(const Catalog& target);
  struct Piece {
    std::uint32_t tensor, stored;
  };
  /// In the order of the tensor's chunks; a stored tensor with several chunks occurs once per chunk.
  std::span<const Piece> of(std::uint32_t rank, std::uint32_t tensor) const;

 private:
  std::vector<Piece> pieces_;        ///< By rank, then tensor.
  std::vector<std::size_t> begins_;  ///< The start of each rank's pieces, and the end.
};

/// The parts that the files of all ranks share.
struct WrittenSet {
  WrittenSet(const Catalog& target, RankFiles of_kind, const std::vector<bool>& cut)
      : kind(of_kind),
        ranks(static_cast<std::uint32_t>(target.files.size())),
        is_cut(cut),
        is_parameter(cut.size()),
        pieces(target) {}

  RankFiles kind;
  std::uint32_t ranks;
  const Value* root = nullptr;     ///< The target's tree, with the Parameters of sharded tensors unwrapped.
  std::vector<bool> is_cut;        ///< By tensor.
  std::vector<bool> is_parameter;  ///< By tensor: whether it was unwrapped.
  PiecesByRank pieces;
};

/// Writes one rank's pickle. Its kTensor values are numbered: tensors of the target, then its stored tensors, then
/// meshes' ranks.
class WrittenRank {
 public:
  WrittenRank(const Catalog& target, const WrittenSet& set, std::uint32_t rank, torch_save::PlacedZip& zip);
  /// Writes the tree with this rank's part of every tensor. Called once.
  void dump(const pickle::Sink& sink);

 private:
  bool write_instead(pickle::Dumper& dumper, std::int64_t number);
  /// Writes a tensor. Tensors of one dtype, shape and sharding differ only in their local tensors.
  void write_like_others(pickle::Dumper& dumper, const std::string& looks, std::span<const Value* const> locals,
                         const std::function<Value*()>& make);
  torch_save::TensorView view(std::int64_t number);
  const StoredTensor& stored_of(std::uint32_t tensor) const;
  std::string_view location_of(std::uint32_t tensor) const;
  Value* local_tensor(std::uint32_t stored);
  void write_sharded_tensor(pickle::Dumper& dumper, std::uint32_t tensor);
  void write_dtensor(pickle::Dumper& dumper, std::uint32_t tensor);
  /// The boxes of a tensor that is sharded along one dimension, in the form of a ChunkShardingSpec.
  std::vector<ShardBox> chunk_boxes(const Tensor& tensor, const Sharding& sharding, std::string_view location);
  std::vector<ShardBox> enumerated_boxes(const Tensor& tensor, std::string_view location);
  std::string_view placement_of(std::int64_t rank, std::string_view location);
  Value* mesh_of(const Sharding& sharding, std::string_view device_type);

  struct Mesh {
    const Sharding* sharding;  ///< Only its axes and ranks are used, not its placements.
    Value* value;
  };

  /// The number of times that such a tensor was written, and its form from the second time on.
  struct Known {
    bool was_written = false;
    std::optional<pickle::Recording> recording;
  };

  const WrittenSet& set_;
  const Catalog& target_;
  const std::uint32_t rank_;
  torch_save::PlacedZip& zip_;
  Arena arena_;
  ShardedValueMaker maker_;
  GroupNames groups_;
  HashMap<std::string, Mesh> meshes_;  ///< By axes, device type and ranks.
  std::map<std::pair<std::int64_t, std::string_view>, std::string_view> placements_;
  HashMap<std::string, Known> known_;  ///< Keyed by looks_of.
  std::size_t known_bytes_ = 0;
};

/// The ranks as int32, little-endian.
std::string rank_bytes(std::span<const std::int64_t> ranks) {
  std::string bytes;
  for (const std::int64_t rank : ranks) {
    for (int shift = 0; shift < 32; shift += 8) bytes += static_cast<char>(rank >> shift & 0xFF);
  }
  return bytes;
}

/// True if a ChunkShardingSpec is equivalent: one axis, divided like torch.chunk.
bool is_chunked(const Sharding& sharding) {
  return sharding.mesh.size() == 1 && sharding.placements[0].kind == Placement::kShard &&
         sharding.placements[0].split == CutRule::kChunk;
}

/// The key that identifies a tensor.
KeyText looks_of(const ShardedTensorValue& value) {
  KeyText looks;
  looks.numbers(value.dtype, value.requires_grad, value.spec.is_chunk, value.spec.dim, value.local.size());
  looks.list(value.shape.span());
  for (const ShardBox& box : value.all) {
    looks.list(box.offsets);
    looks.list(box.sizes);
    looks.text(box.placement);
  }
  return looks;
}

PiecesByRank::PiecesByRank(const Catalog& target) : begins_(target.files.size() + 1) {
  const auto for_each = [&](const auto& call) {
    for (std::uint32_t i = 0; i < target.tensors.size(); ++i) {
      for (const Chunk& chunk : target.chunks_of(target.tensors[i])) {
        call(target.storage_of(chunk).file, Piece{i, chunk.stored});
      }
    }
  };
  for_each([this](std::uint32_t file, const Piece&) { ++begins_[file + 1]; });
  for (std::size_t i = 1; i < begins_.size(); ++i) begins_[i] += begins_[i - 1];
  pieces_.resize(begins_.back());
  std::vector<std::size_t> next(begins_.begin(), begins_.end() - 1);
  for_each([&](std::uint32_t file, const Piece& piece) { pieces_[next[file]++] = piece; });
}

std::span<const PiecesByRank::Piece> PiecesByRank::of(std::uint32_t rank, std::uint32_t tensor) const {
  const auto all = std::span(pieces_).subspan(begins_[rank], begins_[rank + 1] - begins_[rank]);
  const auto found = std::ranges::equal_range(all, tensor, {}, &Piece::tensor);
  return {found.begin(), found.end()};
}

/// By tensor: whether some rank has less than the whole tensor.
std::vector<bool> find_cut_tensors(const Catalog& target) {
  std::vector<bool> is_cut(target.tensors.size());
  for (std::size_t i = 0; i < is_cut.size(); ++i) {
    const Tensor& tensor = target.tensors[i];
    const auto is_whole = [&](const Chunk& chunk) { return target.stored[chunk.stored].shape == tensor.shape; };
    is_cut[i] = !std::ranges::all_of(target.chunks_of(tensor), is_whole);
  }
  return is_cut;
}

WrittenRank::WrittenRank(const Catalog& target, const WrittenSet& set, std::uint32_t rank, torch_save::PlacedZip& zip)
    : set_(set), target_(target), rank_(rank), zip_(zip), maker_(arena_) {}

void WrittenRank::dump(const pickle::Sink& sink) {
  torch_save::dump(
      *set_.root, [this](std::int64_t number) { return view(number); },
      [this](pickle::Dumper& dumper, std::int64_t number) { return write_instead(dumper, number); }, sink);
}

const StoredTensor& WrittenRank::stored_of(std::uint32_t tensor) const {
  const auto pieces = set_.pieces.of(rank_, tensor);
  assert(!pieces.empty());
  return target_.stored[pieces.front().stored];
}

bool WrittenRank::write_instead(pickle::Dumper& dumper, std::int64_t number) {
  const auto index = static_cast<std::size_t>(number);
  if (index >= target_.tensors.size() || !set_.is_cut[index] || set_.kind == RankFiles::kPlain) return false;
  const auto tensor = static_cast<std::uint32_t>(number);
  set_.kind == RankFiles::kShardedTensor ? write_sharded_tensor(dumper, tensor) : write_dtensor(dumper, tensor);
  return true;
}

// The second one is recorded, because the first one writes the parts that are shared.
void WrittenRank::write_like_others(pickle::Dumper& dumper, const std::string& looks,
                                    std::span<const Value* const> locals, const std::function<Value*()>& make) {
  constexpr std::size_t kMostBytes = 16 << 20;
  if (known_bytes_ > kMostBytes) {
    known_.clear();
    known_bytes_ = 0;
  }
  Known& known = known_[looks];
  if (known.recording) return dumper.replay(*known.recording, locals);
  if (known.was_written) {
    known.recording = dumper.record(*make());
    known_bytes_ += known.recording->bytes.size() + known.recording->steps.size() * sizeof(pickle::Recording::Step);
  } else {
    dumper.value(*make());
    known.was_written = true;
    known_bytes_ += 2 * looks.size();
  }
}

torch_save::TensorView WrittenRank::view(std::int64_t number) {
  auto index = static_cast<std::size_t>(number);
  if (index < target_.tensors.size()) return zip_.view_of(target_, stored_of(static_cast<std::uint32_t>(number)));
  index -= target_.tensors.size();
  if (index < target_.stored.size()) {
    torch_save::TensorView local = zip_.view_of(target_, target_.stored[index]);
    // Only the tensor around it requires the gradient; a DTensor's local tensor is detached.
    if (set_.kind == RankFiles::kDTensor) local.requires_grad = false;
    return local;
  }
  const std::vector<std::int64_t> ranks = mesh_ranks(*meshes_.entries()[index - target_.stored.size()].value.sharding);
  const std::int64_t shape[] = {static_cast<std::int64_t>(ranks.size())};
  return zip_.own_tensor(arena_, DType::kInt32, arena_.dims(shape), rank_bytes(ranks));
}

std::string_view WrittenRank::location_of(std::uint32_t tensor) const {
  const Tensor& each = target_.tensors[tensor];
  const StoredTensor& stored = target_.stored_of(each);
  return target_.locations[target_.storages[stored.storage].location];
}

Value* WrittenRank::local_tensor(std::uint32_t stored) {
  return make_tensor(arena_, static_cast<std::int64_t>(target_.tensors.size() + stored));
}

std::string_view WrittenRank::placement_of(std::int64_t rank, std::string_view location) {
  std::string_view& known = placements_[{rank, location}];
  if (known.empty()) known = arena_.copy(fmt::format("rank:{}/{}", rank, location));
  return known;
}

// Pieces without elements are placed at the end. torch places them at their rank's offset, which may be past the end;
// its gather() then fails, and its DCP refuses them.
std::vector<ShardBox> WrittenRank::chunk_boxes(const Tensor& tensor, const Sharding& sharding,
                                               std::string_view location) {
  const int dim = sharding.placements[0].dim;
  const std::int64_t n = tensor.shape[dim], parts = sharding.mesh[0].size, step = ceil_div(n, parts);
  std::vector<std::int64_t> offsets(static_cast<std::size_t>(tensor.shape.size()));
  std::vector<std::int64_t> sizes(tensor.shape.begin(), tensor.shape.end());
  std::vector<ShardBox> boxes;
  const std::vector<std::int64_t> ranks = mesh_ranks(sharding);
  for (std::int64_t part = 0; part < parts; ++part) {
    const std::int64_t rank = ranks[static_cast<std::size_t>(part)];
    const std::int64_t begin = std::min(step * part, n);
    offsets[static_cast<std::size_t>(dim)] = begin;
    sizes[static_cast<std::size_t>(dim)] = std::min(n - begin, step);
    boxes.push_back({arena_.dims(offsets), arena_.dims(sizes), placement_of(rank, location), rank});
  }
  return boxes;
}

std::vector<ShardBox> WrittenRank::enumerated_boxes(const Tensor& tensor, std::string_view location) {
  std::vector<ShardBox> boxes;
  for (const Chunk& chunk : target_.chunks_of(tensor)) {
    const std::int64_t rank = target_.stored[chunk.stored].rank;
    boxes.push_back({chunk.offsets, chunk.sizes, placement_of(rank, location), rank});
  }
  return boxes;
}

void WrittenRank::write_sharded_tensor(pickle::Dumper& dumper, std::uint32_t tensor) {
  const Tensor& each = target_.tensors[tensor];
  const std::string_view location = location_of(tensor);
  ShardedTensorValue value;
  value.dtype = each.dtype;
  value.shape = each.shape;
  value.group = {rank_, rank_, set_.ranks, set_.ranks};
  value.spec.is_chunk = each.sharding != kNoIndex && is_chunked(target_.shardings[each.sharding]);
  if (value.spec.is_chunk) {
    const Sharding& sharding = target_.shardings[each.sharding];
    value.spec.dim = sharding.placements[0].dim;
    value.all = chunk_boxes(each, sharding, location);
    for (const ShardBox& box : value.all) value.spec.placements.push_back(box.placement);
  } else {
    value.all = enumerated_boxes(each, location);
  }
  std::vector<const Value*> locals;
  auto piece = set_.pieces.of(rank_, tensor).begin();
  for (const ShardBox& box : value.all) {
    if (box.rank != rank_) continue;
    value.requires_grad = target_.stored[piece->stored].requires_grad;
    value.local.push_back({box, local_tensor((piece++)->stored)});
    locals.push_back(value.local.back().tensor);
  }
  write_like_others(dumper, looks_of(value).str(), locals, [&] { return maker_.sharded_tensor(value); });
}

Value* WrittenRank::mesh_of(const Sharding& sharding, std::string_view device_type) {
  KeyText key;
  for (const MeshAxis& axis : sharding.mesh) key.text(axis.name).numbers(axis.size);
  const std::string looks = key.text(device_type).list(sharding.ranks).str();
  if (const Mesh* known = meshes_.find(looks)) return known->value;
  const std::vector<std::int64_t> ranks = mesh_ranks(sharding);
  const auto number = static_cast<std::int64_t>(target_.tensors.size() + target_.stored.size() + meshes_.size());
  PickledMesh mesh{&sharding, std::ranges::find(ranks, rank_) - ranks.begin(), {}, device_type, nullptr};
  mesh.groups = groups_.add_mesh(sharding, mesh.index, set_.ranks);
  mesh.ranks = make_tensor(arena_, number);
  return meshes_.try_emplace(looks, Mesh{&sharding, maker_.device_mesh(mesh)}).value.value;
}

void WrittenRank::write_dtensor(pickle::Dumper& dumper, std::uint32_t tensor) {
  const Tensor& each = target_.tensors[tensor];
  const std::string_view location = location_of(tensor);
  DTensorValue value;
  value.dtype = each.dtype;
  value.shape = each.shape;
  value.requires_grad = stored_of(tensor).requires_grad;
  value.local = local_tensor(set_.pieces.of(rank_, tensor).front().stored);
  value.sharding = target_.shardings[each.sharding];
  value.device_type = location.substr(0, location.find(':'));
  value.is_parameter = set_.is_parameter[tensor];
  KeyText looks;
  looks.numbers(value.dtype, value.requires_grad, value.is_parameter, each.sharding);
  looks.list(each.shape);
  looks.text(value.device_type);
  const Value* locals[] = {value.local};
  write_like_others(dumper, looks.str(), locals, [&] {
    return maker_.dtensor(value, mesh_of(target_.shardings[each.sharding], value.device_type));
  });
}

// Parameters around sharded tensors: torch saves them without the call that wraps a plain tensor.

/// The number of a Parameter's tensor, or -1.
std::int64_t wrapped_tensor(const Value& value) {
  const bool is_call = value.is_call_of("torch._utils", "_rebuild_parameter") ||
                       value.is_call_of("torch._utils", "_rebuild_parameter_with_state");
  const bool is_parameter = is_call && !value.items().empty() && value.items()[0]->kind == ValueKind::kTensor;
  return is_parameter ? value.items()[0]->number : -1;
}

/// Replaces `_rebuild_parameter(tensor, ...)` under `root` by the tensor itself, for each tensor in `is_cut`, by
/// number, and sets its `is_parameter`. Unchanged containers are shared with `root`. `lose` receives the name of each
/// tensor whose call had attributes.
/// Ownership: new nodes are stored in `arena`. \throws Error kCorruption  too deep, or too many steps.
Value* unwrap_parameters(Arena& arena, Value& root, const std::vector<bool>& is_cut, std::vector<bool>& is_parameter,
                         const std::function<void(std::string_view name)>& lose) {
  is_parameter.assign(is_cut.size(), false);
  std::vector<TreeEntry> entries;
  bool is_any = false;
  const auto visit = [&](const TreeLeaf& leaf) {
    TreeEntry entry{leaf.name, leaf.path, kNoIndex, leaf.value};
    const std::int64_t wrapped = wrapped_tensor(*leaf.value);
    if (wrapped >= 0 && is_cut[static_cast<std::size_t>(wrapped)]) {
      entry.tensor = static_cast<std::uint32_t>(wrapped);
      entry.keeps_call = false;
      is_parameter[entry.tensor] = is_any = true;
      if (torch_save::has_attributes(*leaf.value)) lose(leaf.name);
    } else if (leaf.value->kind == ValueKind::kTensor) {
      entry.tensor = static_cast<std::uint32_t>(leaf.value->number);
    }
    entries.push_back(entry);
  };
  visit_leaves(
      arena, root, [](const Value&) { return false; }, visit);
  return is_any ? prune_tree(arena, root, entries) : &root;
}

constexpr std::string_view kLayoutName = "layout.json";

Error not_describable(const Tensor& tensor, const std::string& message) {
  Error error(ErrorCode::kUnsupported, message);
  error.of_tensor(tensor.name);
  return error;
}

/// The index of the first chunk with the box of the chunk before it, or 0.
std::size_t find_replica(const Catalog& target, const Tensor& tensor) {
  const std::span<const Chunk> chunks = target.chunks_of(tensor);
  for (std::size_t i = 1; i < chunks.size(); ++i) {
    const bool has_elements = !is_empty(chunks[i].sizes) && !is_empty(chunks[i - 1].sizes);
    if (has_elements && chunks[i].offsets == chunks[i - 1].offsets) return i;
  }
  return 0;
}

bool is_on_all_ranks(const Catalog& target, const Sharding& sharding) {
  return mesh_ranks(sharding).size() == target.files.size();
}

/// The first placement that does not divide as torch.chunk does, which DTensor requires; null if there is none.
const Placement* find_other_split(const Sharding& sharding) {
  const auto is_other = [](const Placement& each) { return each.split != CutRule::kChunk; };
  const auto other = std::ranges::find_if(sharding.placements, is_other);
  return other == sharding.placements.end() ? nullptr : &*other;
}

bool can_be_dtensor(const Catalog& target, const Tensor& tensor) {
  if (tensor.sharding == kNoIndex) return false;
  const Sharding& sharding = target.shardings[tensor.sharding];
  return is_on_all_ranks(target, sharding) && find_other_split(sharding) == nullptr;
}

/// Suggests a ShardedTensor, unless the tensor has replicas.
void suggest_sharded_tensor(Error& error, const Catalog& target, const Tensor& tensor) {
  if (find_replica(target, tensor) == 0) error.suggest(Remedy::kHoldAs, "sharded_tensor");
}

/// Checks that each element occurs once, as a ShardedTensor's metadata requires.
void check_sharded_tensor(const Catalog& target, const Tensor& tensor) {
  const std::size_t replica = find_replica(target, tensor);
  if (replica == 0) return;
  const std::span<const Chunk> chunks = target.chunks_of(tensor);
  Error error =
      not_describable(tensor, fmt::format("'{}' has replicas, which a ShardedTensor cannot have", tensor.name));
  error.found(fmt::format("one box on ranks {} and {}", target.stored_of(chunks[replica - 1]).rank,
                          target.stored_of(chunks[replica]).rank));
  if (can_be_dtensor(target, tensor)) throw error.suggest(Remedy::kHoldAs, "dtensor");
  throw error.suggest(Remedy::kUseMesh);
}

/// Checks that the tensor has placements on a mesh of all ranks, with one local tensor on each.
void check_placements(const Catalog& target, const Tensor& tensor) {
  if (tensor.sharding == kNoIndex) {
    Error error =
        not_describable(tensor, fmt::format("'{}' is sharded into boxes that no placement describes", tensor.name));
    suggest_sharded_tensor(error, target, tensor);
    throw error.suggest(Remedy::kUseMesh);
  }
  const Sharding& sharding = target.shardings[tensor.sharding];
  if (is_on_all_ranks(target, sharding)) return;
  Error error = not_describable(tensor, fmt::format("'{}' is on a mesh of {} of {} ranks", tensor.name,
                                                    mesh_ranks(sharding).size(), target.files.size()));
  error.because("the file of every rank must contain a part of it");
  suggest_sharded_tensor(error, target, tensor);
  throw error.suggest(Remedy::kUseMesh);
}

/// Checks that the placements divide as torch.chunk does, which DTensor requires.
void check_dtensor(const Catalog& target, const Tensor& tensor) {
  check_placements(target, tensor);
  const Placement* const other = find_other_split(target.shardings[tensor.sharding]);
  if (other == nullptr) return;
  Error error =
      not_describable(tensor, fmt::format("'{}' is sharded into parts that a DTensor cannot have", tensor.name));
  error.because("torch shards DTensors only by the rule of torch.chunk")
      .found(to_string(*other))
      .suggest(Remedy::kHoldAs, "plain");
  suggest_sharded_tensor(error, target, tensor);
  throw Error(error);
}

/// Gives the axes names, which a layout document requires.
std::vector<MeshAxis> named(std::vector<MeshAxis> mesh) {
  if (mesh.size() == 1 && mesh[0].name.empty()) mesh[0].name = "rank";
  if (has_axis_names(mesh)) return mesh;
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
    // Without a sharded tensor, the files themselves do not show that they are files of ranks.
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
          fmt::format("tensors are sharded and written without the attributes of their Parameters: {}", lost.text()));
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
        return check_placements(target, tensor);
    }
  }

  /// The single mesh of a document, in which the ranks are numbered in order.
  static std::vector<MeshAxis> common_mesh(const Catalog& target, const std::vector<bool>& is_cut) {
    const std::vector<MeshAxis>* mesh = nullptr;
    for (std::size_t i = 0; i < is_cut.size(); ++i) {
      if (!is_cut[i]) continue;
      const Tensor& tensor = target.tensors[i];
      const Sharding& sharding = target.shardings[tensor.sharding];
      if (mesh != nullptr && *mesh != sharding.mesh) {
        throw not_describable(tensor,
                              fmt::format("'{}' is on a different mesh from the tensors before it", tensor.name))
            .because("a layout document has one mesh");
      }
      if (!std::ranges::is_sorted(sharding.ranks)) {
        throw not_describable(tensor, fmt::format("'{}' is on a mesh whose ranks are not in order", tensor.name))
            .because("a layout document cannot express this");
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
      // Rules apply to names, so two tensors with one name must have the same sharding. They are neighbours.
      const bool is_second = i > 0 && tensor.name == target.tensors[i - 1].name;
      if (is_second &&
          (is_cut[i] != is_cut[i - 1] || (is_cut[i] && tensor.sharding != target.tensors[i - 1].sharding))) {
        throw not_describable(tensor,
                              fmt::format("two tensors are named '{}' and are sharded differently", tensor.name))
            .because("a layout document identifies tensors by name");
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
          .single_box_items = options.rank_files.value_or(RankFiles::kShardedTensor) == RankFiles::kShardedTensor,
          .keeps_replicas = true,
          .keeps_empty = true,
          .replicate_whole_tensors = true,
          .objects = true,
          .sharing = true,
          .aliases = true,
          .many_files = false};
}

std::unique_ptr<Writer> make_writer(const WriteOptions& options) {
  return std::make_unique<RanksWriter>(options.rank_files.value_or(RankFiles::kShardedTensor));
}

}  // namespace shard::torch_ranks
