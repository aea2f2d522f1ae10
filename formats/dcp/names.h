/// \file
/// Names of the files in a dcp folder.
#pragma once

#include <cstdint>
#include <string_view>

namespace shard::dcp {

inline constexpr std::string_view kMetadataName = ".metadata";

/// The rank and number in `__RANK_NUMBER.distcp`; rank -1 for other names.
struct FileNumbers {
  int rank = -1;
  std::int64_t number = 0;
};
FileNumbers file_numbers(std::string_view name);

/// The rank in `__RANK.metadata`, which each rank writes with use_collectives=False; -1 for other names.
int metadata_rank(std::string_view name);

}  // namespace shard::dcp
