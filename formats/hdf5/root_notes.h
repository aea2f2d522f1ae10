/// \file
/// The attributes of the root group in which shardctl's files record their properties. Inside formats/hdf5 only.
///
/// | attribute | content |
/// |---|---|
/// | shardctl.names | names of links are percent-encoded keys (link_names.h) |
/// | shardctl.tree | the container tree (tree.h) |
/// | shardctl.world_size | in a master and in ranks' files: the number of ranks |
/// | shardctl.rank | in a rank's file: the rank of its pieces |
/// | shardctl.metadata.KEY | Catalog::metadata; KEY is encoded by link_name() |
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "formats/hdf5/described.h"
#include "libshard/core/arena.h"

namespace shard::hdf5 {

inline constexpr std::string_view kWorldSizeAttribute = "shardctl.world_size";
inline constexpr std::string_view kRankAttribute = "shardctl.rank";
inline constexpr std::string_view kMetadataPrefix = "shardctl.metadata.";

struct RootNotes {
  bool are_names_encoded = false;
  std::span<const std::byte> tree{};  ///< In the arena.
  std::optional<std::int64_t> world_size, rank;
  std::vector<std::pair<std::string, std::string>> metadata{};
};

/// The name of a rank's file: "rank-00000-of-00004.h5".
std::string rank_file_name(std::int64_t rank, std::int64_t world_size);

/// \throws Error kCorruption  one of these attributes has a different type.
RootNotes root_notes(Arena& arena, const Entry& root);

/// Whether an attribute of the root is one of these instead of an object.
bool is_root_note(std::string_view name);

}  // namespace shard::hdf5
