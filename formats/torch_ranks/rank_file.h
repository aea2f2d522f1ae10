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

// Plain tensors whose Python attributes record the positions of their pieces in a whole tensor (torch 2.15:
// CheckpointableTensor): global_shape, global_offsets, local_offsets and local_sizes. Bytes between the pieces are
// padding.

/// A box of a whole tensor inside the tensor of a rank.
struct PlacedPiece {
  Dims offsets, sizes;  ///< In the whole tensor.
  Dims from;            ///< The offset of the box in the rank's tensor.
};

struct PlacedTensorValue {
  torch_save::TensorView view;
  Dims shape;  ///< The shape of the whole tensor.
  std::vector<PlacedPiece> pieces;
  bool requires_grad = false;
};

enum class LeafKind : std::uint8_t { kShardedTensor, kDTensor, kPlaced, kPlain, kObject };
/// "a ShardedTensor", "an object", ..., for messages.
std::string_view name_of(LeafKind kind);

struct RankLeaf {
  std::string_view name;
  Path path;  ///< Compact, see compact_path.
  /// The value that becomes a kTensor value: the tensor inside a Parameter, or the value of an object. Null if the leaf
  /// is a tensor and the file's root itself.
  Value* node = nullptr;
  LeafKind kind{};
  bool requires_grad = false;
  bool has_attributes = false;   ///< See StoredTensor.
  bool lost_attributes = false;  ///< It was read without the attributes of its Python object.
  std::uint32_t item = 0;        ///< Index into RankFile::sharded, dtensors, placed or plain.
};

struct RankFile {
  std::uint32_t number = 0;  ///< The file's index in the catalog.
  Value* root = nullptr;     ///< Null if the tree was not kept, see keep_without_tree.
  std::vector<RankLeaf> leaves;
  std::vector<ShardedTensorValue> sharded;
  std::vector<DTensorValue> dtensors;
  std::vector<PlacedTensorValue> placed;
  std::vector<torch_save::TensorView> plain;

  /// From the content; set later from the file name or the layout document if the content does not record it.
  std::optional<std::int64_t> rank;
  /// From the content; 0 if it is unknown. A lower bound if only DTensors record it.
  std::int64_t world_size = 0;
  bool is_exact = false;              ///< A process group recorded the world size.
  std::optional<GroupState> group{};  ///< The process group of its first ShardedTensor.
  bool has_several_groups = false;    ///< Other ShardedTensors have different groups.
  const Sharding* mesh = nullptr;     ///< The largest mesh of its DTensors.

  bool states_world() const { return world_size > 0; }
  bool is_sharded() const { return !sharded.empty() || !dtensors.empty() || !placed.empty(); }
};

/// The position of a file's tensors in its tree.
struct RankRoot {
  std::span<const std::string>
      /// Only tensors below these keys count, and their names start there. Objects keep their whole names.
      keys{};
  bool takes_beside = true;  ///< Objects at other positions also count.
};

/// Opens `name` as the next file of `files` and reads its leaves, which live as long as the catalog.
/// \param like  the file of a different rank, with which this one may share lists of shards; may be null
/// \throws Error kCorruption, kNotFound, kUnsupported  with file and tensor. Also kCorruption (kinds rank_mismatch,
///   world_size_mismatch) if its tensors disagree about its rank or world size.
RankFile read_rank_file(Catalog& catalog, torch_save::SavedFiles& files, const std::string& name,
                        const RankRoot& root = {}, const RankFile* like = nullptr);

}  // namespace shard::torch_ranks
