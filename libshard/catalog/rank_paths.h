/// \file
/// RankPaths: which file of a source is which rank's, where something outside of the files says so.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace shard {

/// A file that holds tensors of one rank.
struct RankPath {
  std::string path;  ///< Below the source's folder, or as given.
  std::int64_t rank = 0;
  std::vector<std::string> root{};  ///< Keys that lead to the tensors in it; what lies beside is no tensor of the rank.
};

struct RankPaths {
  std::vector<RankPath> files;     ///< By rank; a rank may have several, or none.
  std::vector<std::int64_t> mesh;  ///< Sizes of its axes, slowest first; none where files are named by rank.
  std::int64_t ranks = 0;
};

}  // namespace shard
