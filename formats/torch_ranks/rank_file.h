/// \file
/// One rank's torch.save file: its leaves (sharded ones parsed) and the rank it records.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "formats/torch/saved_files.h"
#include "formats/torch/tensor_pickle.h"
#include "formats/torch_ranks/sharded_values.h"
#include "libshard/catalog/catalog.h"

namespace shard::torch_ranks {

// Plain tensors whose Python attributes state the pieces of a whole tensor that they contain (torch 2.15:
// CheckpointableTensor): global_shape, global_offsets, local_offsets and local_sizes. Bytes between the pieces are
// padding.

/// A box of a tensor inside the tensor that a rank holds.
struct PlacedPiece {
  Dims offsets, sizes;  ///< In the whole tensor.
  Dims from;            ///< Where it begins in the rank's tensor.
};

struct PlacedTensorValue {
  torch_save::TensorView view;
  Dims shape;  ///< Of the whole tensor.
  std::vector<PlacedPiece> pieces;
  bool requires_grad = false;
};

/// The pieces that `value` states if it rebuilds such a tensor; nothing if it is something else.
/// \throws Error kCorruption  its attributes contradict one another.
std::optional<PlacedTensorValue> as_placed_tensor(Arena& arena, const Value& value);

enum class LeafKind : std::uint8_t { kShardedTensor, kDTensor, kPlaced, kPlain, kObject };
/// "a ShardedTensor", "an object", ..., for messages.
std::string_view name_of(LeafKind kind);

struct RankLeaf {
  std::string_view name;
  Path path;  ///< Compact, see compact_path.
  /// What becomes a kTensor value; of a Parameter the tensor inside; of an object its value. Null of tensors where the
  /// file's root is.
  Value* node = nullptr;
  LeafKind kind{};
  bool requires_grad = false;
  bool has_attributes = false;  ///< See StoredTensor.
  std::uint32_t item = 0;       ///< Index into RankFile::sharded, dtensors, placed or plain.
};

struct RankFile {
  std::uint32_t number = 0;  ///< The file's index in the catalog.
  Value* root = nullptr;     ///< Null where the tree was not kept, see keep_without_tree.
  std::vector<RankLeaf> leaves;
  std::vector<ShardedTensorValue> sharded;
  std::vector<DTensorValue> dtensors;
  std::vector<PlacedTensorValue> placed;
  std::vector<torch_save::TensorView> plain;

  std::optional<std::int64_t> rank;  ///< From the content, or later from the file name or layout document.
  std::int64_t world_size = 0;       ///< By the content; 0 where it does not say. Of DTensors alone at least this.
  bool is_exact = false;             ///< A process group said the world size.
  const Sharding* mesh = nullptr;    ///< The mesh of its DTensors that has the most ranks.

  bool states_world() const { return world_size > 0; }
  bool is_sharded() const { return !sharded.empty() || !dtensors.empty() || !placed.empty(); }
};

/// Where the tensors of a file lie.
struct RankRoot {
  std::span<const std::string>
      keys{};                ///< Tensors below them alone count, under their names there; objects keep theirs.
  bool takes_beside = true;  ///< Objects that lie elsewhere count too.
};

/// Opens `name` as the next file of `files` and reads its leaves, which live as long as the catalog.
/// \param like  the file of another rank, whose lists of shards this one's may share; may be null
/// \throws Error kCorruption, kNotFound, kUnsupported  naming file and tensor; kCorruption (kinds rank_mismatch,
///   world_size_mismatch) too where its tensors do not agree about its rank or world size.
RankFile read_rank_file(Catalog& catalog, torch_save::SavedFiles& files, const std::string& name,
                        const RankRoot& root = {}, const RankFile* like = nullptr);

}  // namespace shard::torch_ranks
