#include "libshard/job/output_places.h"

#include <map>

#include "libshard/core/checked.h"
#include "libshard/ranks/wire.h"

namespace shard {

OutputPlaces one_place(int ranks) { return {std::vector<int>(static_cast<std::size_t>(ranks), 0)}; }

OutputPlaces find_places(Group& group, const OutputStore& store) {
  std::map<std::string, int> first;
  OutputPlaces places;
  for (const Bytes& place : all_gather(group, to_bytes(store.place()))) {
    const int rank = static_cast<int>(places.roots.size());
    places.roots.push_back(first.try_emplace(std::string(as_text(place)), rank).first->second);
  }
  return places;
}

std::vector<PlaceSpace> find_space(Group& group, const OutputPlaces& places, const std::vector<File>& files,
                                   const std::vector<int>& owners, std::int64_t own_free_bytes) {
  std::vector<std::int64_t> free(places.roots.size());
  group.all_gather(std::as_bytes(std::span(&own_free_bytes, 1)), std::as_writable_bytes(std::span(free)));
  std::map<int, PlaceSpace> by_root;
  for (int rank = 0; rank < group.size(); ++rank) {
    const int root = places.root(rank);
    by_root[root] = {root, 0, free[static_cast<std::size_t>(root)]};
  }
  for (std::size_t i = 0; i < files.size(); ++i) {
    std::int64_t& needed = by_root.at(places.root(owners[i])).needed_bytes;
    needed = checked_add(needed, files[i].bytes);
  }
  std::vector<PlaceSpace> all;
  for (const auto& [root, space] : by_root) all.push_back(space);
  return all;
}

}  // namespace shard
