/// \file The sharding of tensors over a mesh of ranks, in DTensor's terms. Plain data. The arithmetic is place() in
///   layout.h.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "libshard/catalog/layouts/split.h"

namespace shard {

/// A DTensor placement on one mesh axis, or a split into parts that DTensor does not have.
struct Placement {
  enum Kind : std::uint8_t { kReplicate, kShard, kStridedShard } kind = kReplicate;
  int dim = 0;                       ///< A negative dimension counts from the end.
  std::int64_t split_factor = 1;     ///< kStridedShard only.
  CutRule split = CutRule::kChunk;   ///< kShard only. DTensor has kChunk.
  std::vector<std::int64_t> ends{};  ///< CutRule::kWidths only, see ends_of.

  friend bool operator==(const Placement&, const Placement&) = default;
};
/// Parses "R", "S(0)", "_S(0,2)", ... Spaces between the parts are ignored. \throws Error kInvalidArgument
Placement parse_placement(std::string_view text);
/// Rules that DTensor does not have are included: "S(0,even)", "S(0,first_extra)", "S(0,widths=3+5)".
std::string to_string(const Placement& placement);
/// The widths that correspond to its ends.
std::vector<std::int64_t> widths_of(const Placement& placement);

/// An equivalent placement in DTensor's terms if the parts equal those of torch.chunk, as equal parts do.
Placement in_dtensor_terms(Placement placement);

struct MeshAxis {
  std::string name;  ///< May be empty: torch's meshes need no names.
  std::int64_t size;

  friend bool operator==(const MeshAxis&, const MeshAxis&) = default;
};
/// A mesh has at most this many ranks.
inline constexpr std::int64_t kMaxRanks = 1 << 20;
/// Parses "A=N[,B=M...]" or "N". \throws Error kInvalidArgument  malformed, an axis twice, or over kMaxRanks ranks.
std::vector<MeshAxis> parse_mesh(std::string_view text);
/// The number of a coordinate of the mesh, in row-major order. \pre one number per axis, below its size
std::size_t index_on_mesh(std::span<const MeshAxis> mesh, std::span<const std::int64_t> coordinate);
/// The number of its ranks. \pre at most kMaxRanks
std::int64_t mesh_size(std::span<const MeshAxis> mesh);
/// Whether all its axes have names.
bool has_axis_names(std::span<const MeshAxis> mesh);

/// 1 for "rank:1/cuda:0" and "rank:1", which are placements of a ShardedTensor's shards; nothing for a placement
/// without a rank ("worker1/cpu", or "cuda:0", which is the process itself).
std::optional<std::int64_t> rank_of_placement(std::string_view placement);

/// A tensor's sharding as its checkpoint describes it. Its chunks describe the same in boxes.
struct Sharding {
  std::vector<MeshAxis> mesh;         ///< Slowest axis first.
  std::vector<std::int64_t> ranks;    ///< The ranks at the mesh's coordinates, row-major. Empty: 0, 1, 2, ...
  std::vector<Placement> placements;  ///< One per axis. Dims are not negative and exist in the tensor.

  friend bool operator==(const Sharding&, const Sharding&) = default;
};
/// The ranks of its mesh in row-major order, even if `ranks` omits them.
std::vector<std::int64_t> mesh_ranks(const Sharding& sharding);
/// The key of a sharding in tables. Keys are equal if and only if the shardings are.
std::string key_of(const Sharding& sharding);

/// The form of a sharded tensor in a checkpoint of one file per rank: an object that describes the whole tensor in
/// addition to its local part, or only the local part.
enum class RankFiles : std::uint8_t { kShardedTensor, kDTensor, kPlain };

}  // namespace shard
