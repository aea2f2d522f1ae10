#include "formats/hdf5/entry_paths.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>

namespace shard::hdf5 {

namespace {

struct Escape {
  char character;
  std::string_view text;
};
constexpr std::array<Escape, 3> kEscapes{{{'/', "%2F"}, {'%', "%25"}, {'\0', "%00"}}};

}  // namespace

std::string link_name(std::string_view key) {
  if (key.empty()) return "%";
  if (key == "." || key == "..") return key == "." ? "%2E" : "%2E%2E";
  std::string name;
  for (const char each : key) {
    const auto escape = std::ranges::find(kEscapes, each, &Escape::character);
    escape == kEscapes.end() ? name.push_back(each) : void(name.append(escape->text));
  }
  return name;
}

std::string key_of_link(std::string_view link) {
  if (link == "%") return {};
  if (link == "%2E" || link == "%2E%2E") return std::string(link.size() / 3, '.');
  std::string key;
  while (!link.empty()) {
    const auto escape = std::ranges::find_if(kEscapes, [&](const Escape& each) { return link.starts_with(each.text); });
    key.push_back(escape == kEscapes.end() ? link.front() : escape->character);
    link.remove_prefix(escape == kEscapes.end() ? 1 : escape->text.size());
  }
  return key;
}

std::string attribute_name(std::string_view key) { return (key.starts_with(kReserved) ? "%" : "") + link_name(key); }

std::string key_of_attribute(std::string_view name) {
  const bool is_marked = name.starts_with('%') && name.substr(1).starts_with(kReserved);
  return key_of_link(is_marked ? name.substr(1) : name);
}

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

std::string_view EntryPaths::key_of(std::string_view attribute) const {
  return are_encoded_ ? arena_.copy(key_of_attribute(attribute)) : attribute;
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
  for (std::size_t i = 0; i < keys.size(); ++i) path[i] = PathPart::of_key(keys[i]);
  return {keys.size() == 1 ? keys.front() : arena_.copy(fmt::format("{}", fmt::join(keys, "."))), Path(path)};
}

EntryPaths::Place place_below(Arena& arena, const EntryPaths::Place& place, const TreeLeaf& leaf) {
  if (leaf.path.empty()) return place;
  const std::size_t above = std::max<std::size_t>(place.path.size(), 1);
  const std::span<PathPart> path = arena.array<PathPart>(above + leaf.path.size());
  path[0] = PathPart::of_key(place.name);  // An empty path stands for the name as a single key.
  std::ranges::copy(place.path, path.begin());
  std::ranges::copy(leaf.path, path.begin() + static_cast<std::ptrdiff_t>(above));
  return {copy_name(arena, fmt::format("{}.{}", place.name, leaf.name)), Path(path)};
}

}  // namespace shard::hdf5
