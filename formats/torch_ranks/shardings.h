/// \file
/// The catalog's list of shardings without duplicates, and the pieces into which they divide a shape.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "libshard/catalog/catalog.h"
#include "libshard/catalog/layouts/layout.h"
#include "libshard/core/hash_table.h"

namespace shard::torch_ranks {

/// The sharding of a tensor; `order` is that of MeshLayout::Rule.
struct Cut {
  const Sharding& sharding;
  const std::vector<std::size_t>& order;
};

class Shardings {
 public:
  explicit Shardings(Catalog& catalog) : catalog_(catalog) {}

  /// The index of `sharding` in the catalog; added if it is new.
  std::uint32_t index_of(const Sharding& sharding);
  /// The result of place(), with the sharding's own ranks. Cached for equal shapes, up to a limit. Valid until the next
  /// call. \throws Error kUnsupported  strided shards that divide a rank's part into more than 65,536 boxes.
  const std::vector<RankPiece>& pieces(Dims shape, const Cut& cut);

 private:
  Catalog& catalog_;
  HashMap<std::string, std::uint32_t> known_;
  HashMap<std::string, std::vector<RankPiece>> placed_;
  std::size_t placed_boxes_ = 0;
};

/// True if sharding by the slowest axis first has the same result: no dimension is sharded by a faster axis before a
/// slower one.
bool cuts_slowest_first(const Cut& cut);

/// True for 0, 1, 2, ..., which Sharding::ranks omits.
bool is_counting(const std::vector<std::int64_t>& ranks);

}  // namespace shard::torch_ranks
