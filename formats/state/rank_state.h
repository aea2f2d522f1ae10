/// \file
/// The states of ranks in memory, as ranks describe them to one another, and their union as one catalog. Only
/// descriptions: elements stay on their ranks. Inside formats/state, shardtorch/checkpoint and python/native only.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "libshard/catalog/catalog_builder.h"
#include "libshard/ranks/group.h"

namespace shard::checkpoint {

/// A box of a tensor, in elements.
struct HeldBox {
  std::vector<std::int64_t> offsets, sizes;
};

/// One tensor as a rank describes it.
struct TensorInfo {
  DType dtype{};
  bool requires_grad = false;
  bool is_sharded = false;
  std::vector<std::int64_t> shape;  ///< Shape of the whole tensor.
  std::string location;             ///< The device: "cpu", "cuda:0".
  std::vector<HeldBox> boxes;       ///< The boxes on this rank; for a plain tensor, one box that covers it.
  /// Set for a DTensor whose mesh contains all ranks of the group that saves. Its ranks are numbered as in that group.
  std::optional<Sharding> sharding{};
};

/// The state of one rank: a tree, and the tensors that the tree's kTensor values number.
struct RankState {
  std::string tree;  ///< A pickle whose persistent ids are tensors; equal ids are names of one tensor.
  std::vector<TensorInfo> tensors;
};

/// Serialization, for transfer between ranks. \throws Error kPeer  bytes that `to_bytes` did not write.
Bytes to_bytes(const RankState& state);
RankState rank_state(std::span<const std::byte> bytes);

/// Adds a box whose elements are packed, row-major, in a separate storage: `stored` has storage, dtype and rank.
void add_packed_chunk(CatalogBuilder& builder, std::span<const std::int64_t> offsets,
                      std::span<const std::int64_t> sizes, StoredTensor stored);

/// The states of all ranks as one checkpoint whose file r is rank r's memory. Shards are the chunks of one tensor. If
/// several ranks have a plain tensor or a shard of one box, the rank with the fewest bytes to write provides it (the
/// lowest of equals); an object is that of the lowest rank.
struct MergedState {
  Catalog catalog;
  struct Held {
    std::uint32_t tensor, box;  ///< Indices into the rank's own state.
  };
  std::vector<Held> held;  ///< The content of the calling rank's file, in the file's order.
};

struct MergeOptions {
  bool keeps_replicas = false;   ///< Every rank's shard stays, as in a format in which each rank stores its own.
  bool keeps_shardings = false;  ///< The catalog has the placements of DTensors.
  /// Dicts of the keys 0, 1, 2, ... become lists, except inside lists, tuples and objects. Each rank may have some of
  /// the keys.
  bool numbered_lists = false;
};

/// \throws Error kInvalidArgument  ranks contradict one another: different kinds, dtypes or shapes, shards that overlap
///   or leave gaps. kCorruption  a tree contains a class that is not pickle::is_known_global.
/// Cost: n log n in tensors and boxes; ranks whose trees are equal bytes are parsed once.
MergedState merge_states(const std::vector<RankState>& ranks, int own_rank, const MergeOptions& options);

/// True if there are sharded tensors, and every rank described each of them by a mesh and placements.
bool are_dtensors(const std::vector<RankState>& ranks);

}  // namespace shard::checkpoint
