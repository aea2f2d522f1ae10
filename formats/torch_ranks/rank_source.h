/// \file
/// Which files a torch-ranks source consists of, and what their names say.
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
  std::string folder;  ///< What `names` lie in; empty when they are paths as given.
  std::vector<std::string> names;
  std::string layout;  ///< Path of a layout.json beside them, or empty.
};

/// The files with torch's suffixes in a folder; empty where it has none. \throws Error kNotFound  it cannot be read.
RankSource find_rank_files(const Source& source);

/// The only number that differs between the names, for each of them: "rank_0.pt", "rank_1.pt" are 0 and 1. Nothing
/// where names differ otherwise, in several numbers, or in none.
std::optional<std::vector<std::int64_t>> differing_numbers(std::span<const std::string> names);

/// The name that the file of `rank` would have, where the names tell the ranks; empty where they do not.
std::string name_of_rank(std::span<const std::string> names, std::span<const std::int64_t> ranks, std::int64_t rank);

/// The rank by a layout document's files.path: "{axis}" stands for the coordinate on a mesh axis, "{rank}" for the
/// rank, with any leading zeros. Nothing where the name does not fit.
std::optional<std::int64_t> rank_by_template(std::string_view file_path, std::span<const MeshAxis> mesh,
                                             std::string_view name);

}  // namespace shard::torch_ranks
