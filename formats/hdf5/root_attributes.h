/// \file
/// The names of our attributes at the root of a file; beside them `shardctl.names` (link_names.h) and `shardctl.tree`
/// (tree.h). Inside formats/hdf5 only.
#pragma once

#include <string_view>

namespace shard::hdf5 {

/// What the names of texts of Catalog::metadata begin with; the key follows as link_name() writes it.
inline constexpr std::string_view kMetadataPrefix = "shardctl.metadata.";
/// Integers. Of the file of one rank, which holds pieces of tensors: its rank, and how many ranks there are.
inline constexpr std::string_view kRankAttribute = "shardctl.rank";
/// Also of the master file of such files.
inline constexpr std::string_view kWorldSizeAttribute = "shardctl.world_size";

}  // namespace shard::hdf5
