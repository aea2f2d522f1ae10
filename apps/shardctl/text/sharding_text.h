/// \file
/// Describes in a few words how a tensor is sharded, and over which ranks.
#pragma once

#include <string>
#include <vector>

#include "libshard/catalog/catalog.h"

namespace shard::app {

/// Whether to include the sizes of uneven pieces: "S(0) over 4 ranks (3, 3, 3, 0)".
enum class Detail { kBrief, kSizes };

/// The sharding that the checkpoint records: "S(0) over 4 ranks", "dp=2 tp=4: R, S(1)". If it records none, the text
/// describes the chunks: "S(0) over 4 ranks" if they are torch.chunk's pieces of one dimension, one per rank in order;
/// "sharded along dim 0 over 4 ranks" for other sizes; "2 x 3 grid (dims 0, 1), ranks 0-5" for a grid; otherwise the
/// numbers of boxes and replicas. Empty for a tensor in one piece without a recorded rank. Cost: O(n log n) in chunks.
std::string sharding_text(const Catalog& catalog, const Tensor& tensor, Detail detail);

/// "0-3", "0, 2, 5-7": ranks for people. Sorts `ranks`.
std::string ranks_text(std::vector<std::int64_t> ranks);

/// "dp=2 tp=4", "4 ranks", "2 x 4 ranks" if axes have no names.
std::string mesh_text(const Sharding& sharding);

/// The distinct meshes of a catalog's shardings.
struct Meshes {
  explicit Meshes(const Catalog& catalog);
  std::vector<const Sharding*> list;     ///< For each mesh, one sharding that uses it.
  std::vector<std::size_t> of_sharding;  ///< For each of Catalog::shardings, the index in `list`.
};

}  // namespace shard::app
