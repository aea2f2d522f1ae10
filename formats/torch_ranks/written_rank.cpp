#include "formats/torch_ranks/written_rank.h"

#include <fmt/format.h>

#include <algorithm>
#include <cassert>

#include "formats/torch_ranks/shardings.h"
#include "libshard/core/error.h"
#include "libshard/core/key_text.h"

namespace shard::torch_ranks {

namespace {

/// The ranks as int32, little-endian.
std::string rank_bytes(std::span<const std::int64_t> ranks) {
  std::string bytes;
  for (const std::int64_t rank : ranks) {
    for (int shift = 0; shift < 32; shift += 8) bytes += static_cast<char>(rank >> shift & 0xFF);
  }
  return bytes;
}

/// Whether a ChunkShardingSpec says the same: one axis, cut as torch.chunk.
bool is_chunked(const Sharding& sharding) {
  return sharding.mesh.size() == 1 && sharding.placements[0].kind == Placement::kShard &&
         sharding.placements[0].split == CutRule::kChunk;
}

/// What tells tensors apart.
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

}  // namespace

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

// The second one is recorded: what it shares with others was written with the first.
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
    // The tensor around it requires the gradient; a DTensor's local one is detached.
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

// Pieces without elements lie at the end. torch leaves them where their rank's piece would begin, which may be past the
// end: its gather() fails on that, and its DCP refuses it.
std::vector<ShardBox> WrittenRank::chunk_boxes(const Tensor& tensor, const Sharding& sharding,
                                               std::string_view location) {
  const int dim = sharding.placements[0].dim;
  const std::int64_t n = tensor.shape[dim], parts = sharding.mesh[0].size;
  const std::int64_t step = n / parts + (n % parts != 0 ? 1 : 0);
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

}  // namespace shard::torch_ranks
