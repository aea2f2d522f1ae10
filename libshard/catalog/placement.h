/// \file
/// How tensors are sharded over a mesh of ranks, in DTensor's terms. Plain data; the arithmetic is place() in layout.h.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "libshard/catalog/split.h"

namespace shard {

/// DTensor placements of one mesh axis, and cuts into other parts than DTensor's.
struct Placement {
  enum Kind : std::uint8_t { kReplicate, kShard, kStridedShard } kind = kReplicate;
  int dim = 0;                       ///< Negative counts from the end.
  std::int64_t split_factor = 1;     ///< kStridedShard only.
  CutRule split = CutRule::kChunk;   ///< kShard only. DTensor has kChunk.
  std::vector<std::int64_t> ends{};  ///< CutRule::kWidths only, see ends_of.

  friend bool operator==(const Placement&, const Placement&) = default;
};
/// "R", "S(0)", "_S(0,2)", ...; spaces between the parts do not matter. \throws Error kInvalidArgument
Placement parse_placement(std::string_view text);
/// Other parts than DTensor's are named: "S(0,even)", "S(0,first_extra)", "S(0,widths=3+5)".
std::string to_string(const Placement& placement);
/// The widths that its ends state.
std::vector<std::int64_t> widths_of(const Placement& placement);

/// The same parts in DTensor's terms where they are those of torch.chunk: equal ones are.
Placement in_dtensor_terms(Placement placement);

struct MeshAxis {
  std::string name;  ///< May be empty: torch's meshes need no names.
  std::int64_t size;

  friend bool operator==(const MeshAxis&, const MeshAxis&) = default;
};
/// A mesh has at most this many ranks.
inline constexpr std::int64_t kMaxRanks = 1 << 20;
/// "A=N[,B=M...]" or "N". \throws Error kInvalidArgument  also for an axis twice, or more than kMaxRanks ranks.
std::vector<MeshAxis> parse_mesh(std::string_view text);

/// A tensor's sharding as its checkpoint describes it. Its chunks say the same in boxes.
struct Sharding {
  std::vector<MeshAxis> mesh;         ///< Slowest axis first.
  std::vector<std::int64_t> ranks;    ///< At the mesh's coordinates, row-major; empty: 0, 1, 2, ...
  std::vector<Placement> placements;  ///< One per axis; dims not negative, and the tensor has them.

  friend bool operator==(const Sharding&, const Sharding&) = default;
};
/// The key of a sharding in tables: equal for equal ones, and only for those.
std::string key_of(const Sharding& sharding);

/// What a checkpoint of one file per rank holds for a tensor that is cut: an object that describes the whole tensor
/// beside its local part, or the local part alone.
enum class RankFiles : std::uint8_t { kShardedTensor, kDTensor, kPlain };

}  // namespace shard
