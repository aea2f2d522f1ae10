/// \file
/// Where a tensor is cut and over which ranks, in a few words.
#pragma once

#include <string>
#include <vector>

#include "libshard/catalog/catalog.h"

namespace shard::app {

/// Whether the sizes of uneven pieces are said too: "S(0) over 4 ranks (3, 3, 3, 0)".
enum class Detail { kBrief, kSizes };

/// By the checkpoint's own words where it has them: "S(0) over 4 ranks", "dp=2 tp=4: R, S(1)". Else by its chunks: the
/// same words where they are torch.chunk's pieces of one dimension, one to each of the ranks in order, "cut along dim 0
/// over 4 ranks" where the sizes are others; "2 x 3 grid (dims 0, 1),
/// ranks 0-5" for cuts that cross; else how many boxes and copies there are. Empty for a tensor in one piece that no
/// rank wrote. Cost: n log n in chunks.
std::string sharding_text(const Catalog& catalog, const Tensor& tensor, Detail detail);

/// "0-3", "0, 2, 5-7": for people. Sorts `ranks`.
std::string ranks_text(std::vector<std::int64_t> ranks);

/// The ranks of a mesh in row-major order, written out.
std::vector<std::int64_t> ranks_of(const Sharding& sharding);
/// "dp=2 tp=4", "4 ranks", "2 x 4 ranks" where axes have no names.
std::string mesh_text(const Sharding& sharding);

/// The distinct meshes of a catalog's shardings.
struct Meshes {
  explicit Meshes(const Catalog& catalog);
  std::vector<const Sharding*> list;     ///< One that has the mesh, for each.
  std::vector<std::size_t> of_sharding;  ///< Index into `list`, for each of Catalog::shardings.
};

}  // namespace shard::app
