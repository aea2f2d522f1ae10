#include "formats/dcp_hf/names.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "libshard/core/parse_number.h"

namespace shard::dcp_hf {

namespace {

constexpr std::int64_t kMostNumber = 0x7FFFFFFF;
constexpr std::size_t kFew = 3;

/// Takes decimal digits from the text's front; nothing when there are none or too many.
std::optional<std::int64_t> take_number(std::string_view& text) {
  std::string_view rest = text;
  const std::optional<std::int64_t> number = take_natural(rest);
  if (!number || *number > kMostNumber) return std::nullopt;
  text = rest;
  return number;
}

bool take(std::string_view& text, std::string_view word) {
  if (!text.starts_with(word)) return false;
  text.remove_prefix(word.size());
  return true;
}

}  // namespace

std::optional<ShardName> parse_shard_name(std::string_view name) {
  ShardName result;
  if (take(name, "shard-")) {
    const auto shard = take_number(name);
    if (!shard || *shard == 0 || !take(name, "-")) return std::nullopt;
    result.rank = *shard - 1;
  }
  if (!take(name, "model-")) return std::nullopt;
  const auto index = take_number(name);
  if (!index || !take(name, "-of-")) return std::nullopt;
  const auto count = take_number(name);
  if (!count || name != ".safetensors") return std::nullopt;
  result.index = *index;
  result.count = *count;
  return result;
}

std::string to_string(const ShardName& name) {
  const std::string model = fmt::format("model-{:05}-of-{:05}.safetensors", name.index, name.count);
  return name.rank < 0 ? model : fmt::format("shard-{:05}-{}", name.rank + 1, model);
}

NumberRuns runs_of(std::span<const std::int64_t> numbers) {
  NumberRuns runs;
  for (const std::int64_t number : numbers) {
    if (!runs.empty() && number <= runs.back().second + 1) {
      runs.back().second = number;
    } else {
      runs.emplace_back(number, number);
    }
  }
  return runs;
}

std::string to_string(const NumberRuns& runs) {
  std::vector<std::string> parts;
  for (const auto& [first, last] : runs) {
    parts.push_back(first == last ? std::to_string(first) : fmt::format("{}-{}", first, last));
  }
  return fmt::format("{}", fmt::join(parts, ","));
}

std::optional<NumberRuns> parse_runs(std::string_view text) {
  NumberRuns runs;
  do {
    const auto first = take_number(text);
    const auto last = first && take(text, "-") ? take_number(text) : first;
    if (!first || !last || *last < *first || (!runs.empty() && *first <= runs.back().second)) return std::nullopt;
    runs.emplace_back(*first, *last);
  } while (take(text, ","));
  if (!text.empty()) return std::nullopt;
  return runs;
}

NumberRuns missing_from(const NumberRuns& runs, const NumberRuns& present) {
  NumberRuns missing;
  auto at = present.begin();
  for (auto [first, last] : runs) {
    while (first <= last) {
      while (at != present.end() && at->second < first) ++at;
      const bool is_last = at == present.end() || at->first > last;
      if (is_last || at->first > first) missing.emplace_back(first, is_last ? last : at->first - 1);
      if (is_last) break;
      first = at->second + 1;
    }
  }
  return missing;
}

std::int64_t count_of(const NumberRuns& runs) {
  std::int64_t count = 0;
  for (const auto& [first, last] : runs) count += last - first + 1;
  return count;
}

std::vector<std::int64_t> first_few(const NumberRuns& runs) {
  std::vector<std::int64_t> numbers;
  for (const auto& [first, last] : runs) {
    for (std::int64_t number = first; number <= last && numbers.size() < kFew; ++number) numbers.push_back(number);
  }
  return numbers;
}

}  // namespace shard::dcp_hf
