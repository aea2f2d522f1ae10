/// \file
/// Finds the files of a torch-ranks source, and the ranks in their names.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "formats/format.h"

namespace shard::torch_ranks {

struct RankSource {
  std::string folder;  ///< The folder of `names`; empty if they are paths as given.
  std::vector<std::string> names;
  std::string layout;  ///< Path of a layout.json beside them, or empty.
};

/// The files with torch's suffixes in a folder; empty if it has none. \throws Error kNotFound  it cannot be read.
RankSource find_rank_files(const Source& source);

/// The only number that differs between the names, one value per name: 0 and 1 for "rank_0.pt", "rank_1.pt". Nothing if
/// the names differ in other characters, in several numbers, or not at all.
std::optional<std::vector<std::int64_t>> differing_numbers(std::span<const std::string> names);

/// The name that the file of `rank` would have, if names contain the ranks; otherwise empty.
std::string name_of_rank(std::span<const std::string> names, std::span<const std::int64_t> ranks, std::int64_t rank);

/// The rank by a layout document's files.path: "{axis}" is the coordinate on a mesh axis, "{rank}" the rank, both with
/// any leading zeros. Nothing if the name does not match.
std::optional<std::int64_t> rank_by_template(std::string_view file_path, std::span<const MeshAxis> mesh,
                                             std::string_view name);

}  // namespace shard::torch_ranks
