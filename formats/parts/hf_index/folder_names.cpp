#include "formats/parts/hf_index/folder_names.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <map>
#include <optional>
#include <set>
#include <tuple>
#include <utility>

#include "libshard/core/name_pattern.h"
#include "libshard/core/parse_number.h"
#include "libshard/core/short_text.h"

namespace shard::hf_index {

namespace {

constexpr std::string_view kOthers = "other files of the folder are not part of the checkpoint, and are not copied";
using SetKey = std::tuple<std::string_view, std::string_view, std::string_view>;

/// Equal for the parts of one set: everything in their names but their numbers.
SetKey set_of(const CountedName& part) { return {part.base, part.end, part.count}; }

std::int64_t value_of(std::string_view digits) { return parse_natural(digits).value_or(0); }

/// Nothing for hidden files, and those without the suffix.
std::optional<CountedName> read_part_name(std::string_view name, std::string_view suffix) {
  if (name.starts_with('.') || !name.ends_with(suffix)) return std::nullopt;
  return read_counted_name(name);
}

}  // namespace

std::vector<CountedSet> counted_sets(const std::vector<std::string>& names, std::string_view suffix) {
  struct Found {
    std::set<std::int64_t> numbers;
    std::vector<std::string> names;
    std::size_t width = 0;
  };
  std::map<SetKey, Found> found;
  for (const std::string& name : names) {
    const std::optional<CountedName> part = read_part_name(name, suffix);
    if (!part) continue;
    Found& set = found[set_of(*part)];
    set.numbers.insert(value_of(part->number));
    set.names.push_back(name);
    set.width = part->number.size();
  }
  std::vector<CountedSet> sets;
  for (auto& [key, parts] : found) {
    const auto& [base, end, count] = key;
    CountedSet set{std::string(base), std::string(count), std::string(end), std::move(parts.names), {}};
    std::ranges::sort(set.names);
    std::int64_t number = *parts.numbers.begin() == 0 ? 0 : 1;
    const std::int64_t behind = number + value_of(count);
    while (number < behind && parts.numbers.contains(number)) ++number;
    if (number < behind) set.missing = fmt::format("{}{:0{}}-of-{}{}", base, number, parts.width, count, end);
    sets.push_back(std::move(set));
  }
  return sets;
}

std::string missing_part(const std::vector<std::string>& names, std::string_view suffix) {
  const std::vector<CountedSet> sets = counted_sets(names, suffix);
  const auto lacking = std::ranges::find_if(sets, [](const CountedSet& set) { return !set.missing.empty(); });
  return lacking == sets.end() ? std::string() : lacking->missing;
}

std::vector<std::string> unlisted_parts(const std::vector<std::string>& names, const std::vector<std::string>& listed,
                                        std::string_view suffix) {
  std::set<SetKey> counted;
  for (const std::string& name : listed) {
    if (const std::optional<CountedName> part = read_part_name(name, suffix)) counted.insert(set_of(*part));
  }
  std::vector<std::string> unlisted;
  std::ranges::copy_if(names, std::back_inserter(unlisted), [&](const std::string& name) {
    if (listed.empty()) return true;
    const std::optional<CountedName> part = read_part_name(name, suffix);
    return part && counted.contains(set_of(*part)) && !std::ranges::binary_search(listed, name);
  });
  return unlisted;
}

WholeSet whole_set_beside(const std::vector<std::string>& names, const std::vector<std::string>& listed,
                          std::string_view single, std::string_view suffix) {
  std::map<std::pair<std::string_view, std::string_view>, std::vector<std::string>> sets;
  for (const std::string& name : names) {
    const std::optional<CountedName> part = read_part_name(name, suffix);
    if (part) sets[{part->base, part->count}].push_back(name);
    if (!part && name == single) sets[{name, {}}].push_back(name);
  }
  const auto is_listed = [&](const std::string& name) { return std::ranges::binary_search(listed, name); };
  std::erase_if(sets, [&](const auto& set) {
    return std::ranges::any_of(set.second, is_listed) || !missing_part(set.second, suffix).empty();
  });
  if (sets.size() != 1) return {};
  const auto& [key, found] = *sets.begin();
  WholeSet whole{found, std::string(key.first)};
  if (!key.second.empty()) whole.pattern = fmt::format("{}*-of-{}{}", key.first, key.second, suffix);
  std::ranges::sort(whole.names);
  return whole;
}

std::string others_warning(const std::vector<std::string>& names) {
  return fmt::format("{}: {}", kOthers, first_names(names));
}

bool is_others_warning(std::string_view warning) { return warning.starts_with(kOthers); }

}  // namespace shard::hf_index
