/// \file RankPaths: assigns the files of a source to ranks, if this is known from outside of the files.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace shard {

/// A file with tensors of one rank.
struct RankPath {
  std::string path;  ///< Relative to the source's folder, or as given.
  std::int64_t rank = 0;
  std::vector<std::string> root{};  ///< The keys that lead to the tensors in it. Other content is not the rank's.
};

struct RankPaths {
  std::vector<RankPath> files;     ///< By rank. A rank may have several files, or none.
  std::vector<std::int64_t> mesh;  ///< The sizes of its axes, slowest first. Empty if files are named by rank.
  std::int64_t ranks = 0;
};

}  // namespace shard
