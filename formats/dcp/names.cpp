#include "formats/dcp/names.h"

#include <limits>

#include "libshard/core/name_pattern.h"

namespace shard::dcp {

FileNumbers file_numbers(std::string_view name) {
  static const NamePattern kItems("__{rank}_{number}.distcp");
  const auto numbers = kItems.read<2>(name);
  if (!numbers || numbers->front() > std::numeric_limits<int>::max()) return {};
  return {static_cast<int>(numbers->front()), numbers->back()};
}

int metadata_rank(std::string_view name) {
  static const NamePattern kOfRank("__{rank}.metadata");
  const auto rank = kOfRank.read<1>(name);
  return rank && rank->front() <= std::numeric_limits<int>::max() ? static_cast<int>(rank->front()) : -1;
}

}  // namespace shard::dcp
