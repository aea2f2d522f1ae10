#include "formats/parts/hf_index/index_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

#include "libshard/core/error.h"
#include "libshard/core/hash_table.h"
#include "libshard/core/json_writer.h"
#include "libshard/core/utf8.h"
#include "libshard/io/paths.h"
#include "libshard/io/small_text.h"

namespace shard::hf_index {

namespace {

constexpr std::int64_t kProbeBytes = 64 << 10;

constexpr std::string_view kJson = ".json";

/// "fp16" for model.safetensors.index.fp16.json; empty for other names.
std::string_view variant_behind(std::string_view name, std::string_view suffix) {
  const std::string_view front = suffix.substr(0, suffix.size() - kJson.size());  // ".safetensors.index"
  if (!name.ends_with(kJson)) return {};
  name.remove_suffix(kJson.size());
  const std::size_t dot = name.rfind('.');
  if (dot == std::string_view::npos || !name.substr(0, dot).ends_with(front)) return {};
  return name.substr(dot + 1);
}

/// Whether the name has no variant: nothing follows ".index", and the part before the suffix has no dot.
bool is_plain_index(std::string_view name, std::string_view suffix) {
  return name.ends_with(suffix) && name.substr(0, name.size() - suffix.size()).find('.') == std::string_view::npos;
}

}  // namespace

bool is_index_name(std::string_view name, std::string_view suffix) {
  return !name.starts_with('.') && (name.ends_with(suffix) || !variant_behind(name, suffix).empty());
}

std::string choose_index(const std::string& folder, const std::vector<std::string>& names, std::string_view suffix,
                         std::string_view usual) {
  std::vector<std::string> indices;
  std::ranges::copy_if(names, std::back_inserter(indices),
                       [&](const std::string& name) { return is_index_name(name, suffix); });
  if (indices.empty()) return {};
  if (indices.size() == 1) return indices.front();
  if (std::ranges::find(indices, usual) != indices.end()) return std::string(usual);
  const auto is_plain = [&](const std::string& name) { return is_plain_index(name, suffix); };
  if (std::ranges::count_if(indices, is_plain) == 1) return *std::ranges::find_if(indices, is_plain);
  Error error(ErrorCode::kCorruption,
              fmt::format("the folder has {} indexes: {}, {}", indices.size(), indices[0], indices[1]));
  error.in_file(folder);
  for (const std::string& name : indices) error.suggest(Remedy::kReadFolder, join_path(folder, name));
  throw Error(error);
}

bool is_index_file(const RandomReader& file, std::string_view data_suffix) {
  const std::string text = front_of(file, kProbeBytes);
  const std::size_t first = text.find_first_not_of(" \t\r\n");
  return first != std::string::npos && text[first] == '{' && text.find("\"weight_map\"") != std::string::npos &&
         text.find(std::string(data_suffix) + '"') != std::string::npos;
}

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

std::string dump_index(std::int64_t total_bytes, std::span<const IndexEntry> entries) {
  std::string text;
  JsonWriter json(text, kPythonJson);
  json.begin_object();
  json.line(2);
  json.key("metadata"), json.begin_object();
  json.line(4);
  json.key("total_size"), json.number(total_bytes);
  json.end_line(2);
  json.end_object();
  json.line(2);
  json.key("weight_map"), json.begin_object();
  for (const IndexEntry& entry : entries) {
    if (!is_utf8(entry.tensor) || !is_utf8(entry.file)) {
      throw Error(ErrorCode::kUnsupported, "cannot write an index: a tensor's name is not valid UTF-8")
          .of_tensor(entry.tensor)
          .suggest(Remedy::kRename, entry.tensor);
    }
    json.line(4);
    json.member_name(entry.tensor), json.string(entry.file);
  }
  if (!entries.empty()) json.end_line(2);
  json.end_object();
  json.end_line();
  json.end_object();
  json.end_line();
  return text;
}

}  // namespace shard::hf_index
