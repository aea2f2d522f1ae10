#include "formats/parts/hf_index/weight_map.h"

#include <fmt/format.h>

#include <algorithm>
#include <span>

#include "formats/parts/json/json_cursor.h"
#include "libshard/core/error.h"
#include "libshard/core/hash_table.h"

namespace shard::hf_index {

namespace {

/// Numbers files in the order of their first use.
class FileNumbers {
 public:
  std::uint32_t number(const std::string& name) {
    return numbers_.try_emplace(name, static_cast<std::uint32_t>(numbers_.size())).value;
  }
  /// Sorts the names. \returns the new number of each old one.
  std::vector<std::uint32_t> sort(std::vector<std::string>& sorted) {
    for (const auto& [name, number] : numbers_.entries()) sorted.push_back(name);
    std::ranges::sort(sorted);
    std::vector<std::uint32_t> to(sorted.size());
    for (std::size_t i = 0; i < sorted.size(); ++i) to[*numbers_.find(sorted[i])] = static_cast<std::uint32_t>(i);
    return to;
  }

 private:
  HashMap<std::string, std::uint32_t> numbers_;
};

void read_entries(JsonCursor& json, const std::string& file, WeightMap& map, FileNumbers& numbers) {
  json.enter_object();
  bool is_first = true;
  std::string_view key;
  while (json.next_key(key, is_first)) {
    if (json.has_escapes()) key = map.arena->copy(json.decode(key));
    const std::string_view raw = json.string();
    const std::string name = json.has_escapes() ? json.decode(raw) : std::string(raw);
    if (!is_safe_path(name)) {
      throw Error(ErrorCode::kCorruption, fmt::format("the index places '{}' in '{}'", key, name))
          .in_file(file)
          .of_tensor(key)
          .because(kMustBeBelow);
    }
    map.entries.push_back({key, numbers.number(name)});
  }
}

void check_names(const WeightMap& map, const std::string& file) {
  const auto twice = std::ranges::adjacent_find(map.entries, {}, &WeightMapEntry::name);
  if (twice == map.entries.end()) return;
  throw Error(ErrorCode::kCorruption, fmt::format("the index lists '{}' twice", twice->name))
      .in_file(file)
      .of_tensor(twice->name)
      .of_kind(FindingKind::kDuplicateName);
}

}  // namespace

bool is_safe_path(std::string_view name) {
  if (name.find_first_of(std::string_view("\\\0", 2)) != name.npos) return false;
  while (true) {
    const std::size_t slash = std::min(name.find('/'), name.size());
    const std::string_view part = name.substr(0, slash);
    if (part.empty() || part == "." || part == "..") return false;
    if (slash == name.size()) return true;
    name.remove_prefix(slash + 1);
  }
}

void walk_index(JsonCursor& json, const std::function<void()>& read_map) {
  json.enter_object();
  bool is_first = true, has_map = false;
  std::string_view key;
  while (json.next_key(key, is_first)) {
    if (key != "weight_map") {
      json.skip();
      continue;
    }
    if (std::exchange(has_map, true)) json.fail("weight_map appears twice");
    read_map();
  }
  json.finish();
  if (!has_map) json.fail("the index has no weight_map");
}

WeightMapEntry* WeightMap::find(std::string_view name) {
  const auto at = std::ranges::lower_bound(entries, name, {}, &WeightMapEntry::name);
  return at != entries.end() && at->name == name ? &*at : nullptr;
}

WeightMap read_weight_map(const RandomReader& file) {
  WeightMap map;
  const auto text = std::make_shared<std::vector<std::byte>>(read_metadata(file, 0, file.size(), *map.arena));
  text->push_back(std::byte{0});
  map.arena->adopt(text);
  FileNumbers numbers;
  const char* const begin = reinterpret_cast<const char*>(text->data());
  JsonCursor json(begin, begin + file.size(), file.name(), FindingKind::kBadHeader);
  walk_index(json, [&] { read_entries(json, file.name(), map, numbers); });

  std::ranges::sort(map.entries, {}, &WeightMapEntry::name);
  check_names(map, file.name());
  const std::vector<std::uint32_t> to = numbers.sort(map.files);
  for (WeightMapEntry& entry : map.entries) entry.file = to[entry.file];
  return map;
}

}  // namespace shard::hf_index
