/// \file
/// The ranks that files of one rank each record about themselves.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

namespace shard {

/// The rank of a file, and the process group of its tensors if it records one.
struct RankGroup {
  std::int64_t rank = 0;                     ///< In the world.
  std::optional<std::int64_t> world_size{};  ///< Nothing: the file has no ShardedTensor.
  std::optional<std::int64_t> local_rank{};  ///< Rank and size in the group of its ShardedTensors. Nothing: they have
  std::optional<std::int64_t> local_world_size{};  ///< several groups, or the rank is outside their group.
};

/// A Reader of such files implements this too. Readers that change another one's catalog do not.
class RankGroupSource {
 public:
  virtual ~RankGroupSource() = default;
  /// By index in Catalog::files; nothing for a file without a rank. May be shorter than the list of files.
  virtual const std::vector<std::optional<RankGroup>>& rank_groups() const = 0;
};

}  // namespace shard
