/// \file
/// The catalog's list of shardings, each once, and the pieces that they mean for a shape.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "libshard/catalog/catalog.h"
#include "libshard/catalog/layout.h"
#include "libshard/core/hash_table.h"

namespace shard::torch_ranks {

/// How a tensor is cut; `order` is that of MeshLayout::Rule.
struct Cut {
  const Sharding& sharding;
  const std::vector<std::size_t>& order;
};

class Shardings {
 public:
  explicit Shardings(Catalog& catalog) : catalog_(catalog) {}

  /// The index of `sharding` in the catalog; added when it is new.
  std::uint32_t index_of(const Sharding& sharding);
  /// place(), with ranks as the sharding names them. Worked out once for equal shapes, as long as they are not too
  /// many. Valid until the next call. \throws Error kUnsupported  strided shards that cut a rank's part into more than
  /// 65,536 boxes.
  const std::vector<RankPiece>& pieces(Dims shape, const Cut& cut);

 private:
  Catalog& catalog_;
  HashMap<std::string, std::uint32_t> known_;
  HashMap<std::string, std::vector<RankPiece>> placed_;
  std::size_t placed_boxes_ = 0;
};

/// True where cutting slowest axis first means the same: no dimension is cut by a faster axis before a slower one.
bool cuts_slowest_first(const Cut& cut);

/// True for 0, 1, 2, ..., which Sharding::ranks leaves out.
bool is_counting(const std::vector<std::int64_t>& ranks);
/// The ranks of a mesh of these axes.
std::int64_t mesh_size(std::span<const MeshAxis> mesh);
/// Elements of `sharding.ranks`, also where those are left out.
std::vector<std::int64_t> mesh_ranks(const Sharding& sharding);

}  // namespace shard::torch_ranks
