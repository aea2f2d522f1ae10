#include "formats/hdf5/entry_paths.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "formats/hdf5/link_names.h"

namespace shard::hdf5 {

void EntryPaths::move_to(std::span<const std::string_view> links) {
  const auto parted = std::ranges::mismatch(links_, links);
  const auto same = static_cast<std::size_t>(parted.in1 - links_.begin());
  links_.resize(same);
  keys_.resize(same);
  for (const std::string_view link : links.subspan(same)) {
    links_.emplace_back(link);
    keys_.push_back(arena_.copy(are_encoded_ ? key_of_link(link) : link));
  }
}

EntryPaths::Place EntryPaths::in_group(std::string_view key) const {
  std::vector<std::string_view> keys = keys_;
  keys.push_back(arena_.copy(are_encoded_ ? key_of_attribute(key) : key));
  return place_of(keys);
}

EntryPaths::Place EntryPaths::beside_dataset(std::string_view key) const {
  std::vector<std::string_view> keys = keys_;
  keys.back() = arena_.copy(fmt::format("{}.{}", keys.back(), are_encoded_ ? key_of_attribute(key) : key));
  return place_of(keys);
}

EntryPaths::Place EntryPaths::place_of(std::span<const std::string_view> keys) const {
  if (keys.size() == 1 && !keys.front().empty()) return {keys.front(), {}};
  const std::span<PathPart> path = arena_.array<PathPart>(keys.size());
  for (std::size_t i = 0; i < keys.size(); ++i) path[i].key = keys[i];
  return {keys.size() == 1 ? keys.front() : arena_.copy(fmt::format("{}", fmt::join(keys, "."))), path};
}

}  // namespace shard::hdf5
