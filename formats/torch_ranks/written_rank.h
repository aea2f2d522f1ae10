/// \file
/// The pickle of one rank's file, made from a target catalog.
#pragma once

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
#include "formats/torch_ranks/sharded_value_maker.h"
#include "libshard/catalog/catalog.h"
#include "libshard/core/hash_table.h"

namespace shard::torch_ranks {

/// Which stored tensors each rank holds of each tensor.
class PiecesByRank {
 public:
  explicit PiecesByRank(const Catalog& target);
  struct Piece {
    std::uint32_t tensor, stored;
  };
  /// In the order of the tensor's chunks; a stored tensor of several chunks once for each.
  std::span<const Piece> of(std::uint32_t rank, std::uint32_t tensor) const;

 private:
  std::vector<Piece> pieces_;        ///< By rank, then tensor.
  std::vector<std::size_t> begins_;  ///< Each rank's, and the end.
};

/// By tensor: whether some rank holds less than all of it.
std::vector<bool> find_cut_tensors(const Catalog& target);

/// What the files of all ranks have in common.
struct WrittenSet {
  WrittenSet(const Catalog& target, RankFiles of_kind, const std::vector<bool>& cut)
      : kind(of_kind),
        ranks(static_cast<std::uint32_t>(target.files.size())),
        is_cut(cut),
        is_parameter(cut.size()),
        pieces(target) {}

  RankFiles kind;
  std::uint32_t ranks;
  const Value* root = nullptr;     ///< The target's tree, Parameters of sharded tensors unwrapped.
  std::vector<bool> is_cut;        ///< By tensor.
  std::vector<bool> is_parameter;  ///< By tensor: it was unwrapped.
  PiecesByRank pieces;
};

/// Numbers of kTensor values in the pickle: tensors of the target, then its stored tensors, then meshes' ranks.
class WrittenRank {
 public:
  WrittenRank(const Catalog& target, const WrittenSet& set, std::uint32_t rank, torch_save::PlacedZip& zip);
  /// The tree with this rank's part of every tensor. Called once.
  void dump(const pickle::Sink& sink);

 private:
  bool write_instead(pickle::Dumper& dumper, std::int64_t number);
  /// Tensors of one dtype, shape and sharding are written alike but for the local tensors.
  void write_like_others(pickle::Dumper& dumper, const std::string& looks, std::span<const Value* const> locals,
                         const std::function<Value*()>& make);
  torch_save::TensorView view(std::int64_t number);
  const StoredTensor& stored_of(std::uint32_t tensor) const;
  std::string_view location_of(std::uint32_t tensor) const;
  Value* local_tensor(std::uint32_t stored);
  void write_sharded_tensor(pickle::Dumper& dumper, std::uint32_t tensor);
  void write_dtensor(pickle::Dumper& dumper, std::uint32_t tensor);
  /// The boxes of a tensor that is cut along one dimension, as ChunkShardingSpec has them.
  std::vector<ShardBox> chunk_boxes(const Tensor& tensor, const Sharding& sharding, std::string_view location);
  std::vector<ShardBox> enumerated_boxes(const Tensor& tensor, std::string_view location);
  std::string_view placement_of(std::int64_t rank, std::string_view location);
  Value* mesh_of(const Sharding& sharding, std::string_view device_type);

  struct Mesh {
    const Sharding* sharding;  ///< Its axes and ranks count, not its placements.
    Value* value;
  };

  /// How often such a tensor was written, and from the second time on, how.
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
  HashMap<std::string, Known> known_;  ///< By what tensors look like.
  std::size_t known_bytes_ = 0;
};

}  // namespace shard::torch_ranks
