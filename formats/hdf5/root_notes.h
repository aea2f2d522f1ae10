/// \file
/// What our files say of themselves in attributes of the root group. Inside formats/hdf5 only.
///
/// | attribute | says |
/// |---|---|
/// | shardctl.names | names of links are percent-encoded keys (link_names.h) |
/// | shardctl.tree | the container tree (tree.h) |
/// | shardctl.world_size | of a master, and of ranks' files: the number of ranks |
/// | shardctl.rank | of a rank's file: whose pieces it holds |
/// | shardctl.metadata.KEY | Catalog::metadata; KEY as link_name() writes it |
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

/// What a rank's file is called: "rank-00000-of-00004.h5".
std::string rank_file_name(std::int64_t rank, std::int64_t world_size);

/// \throws Error kCorruption  an attribute of ours that holds something else.
RootNotes root_notes(Arena& arena, const Entry& root);

/// Whether an attribute of the root is one of these, and not an object.
bool is_root_note(std::string_view name);

}  // namespace shard::hdf5
