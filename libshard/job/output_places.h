/// \file
/// The places that the ranks of a job write to: one for all, or one for each rank, or for ranks that share a folder.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "libshard/catalog/catalog.h"
#include "libshard/io/output.h"
#include "libshard/ranks/group.h"

namespace shard {

/// Which rank begins and commits the output of each rank's place: the lowest that writes there.
struct OutputPlaces {
  std::vector<int> roots;  ///< By rank.

  bool is_root(int rank) const { return roots[static_cast<std::size_t>(rank)] == rank; }
  int root(int rank) const { return roots[static_cast<std::size_t>(rank)]; }
};

/// One place for all ranks, whatever the stores say.
OutputPlaces one_place(int ranks);
/// By what the stores say. Collective. \throws Error kPeer
OutputPlaces find_places(Group& group, const OutputStore& store);

/// What each place needs and has; `owners` are those of the files.
struct PlaceSpace {
  int root = 0;
  std::int64_t needed_bytes = 0, free_bytes = 0;
};
/// By root, rising. Collective. \throws Error kPeer
std::vector<PlaceSpace> find_space(Group& group, const OutputPlaces& places, const std::vector<File>& files,
                                   const std::vector<int>& owners, std::int64_t own_free_bytes);

}  // namespace shard
