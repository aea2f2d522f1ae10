#include "formats/dcp_hf/names.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>

#include "libshard/core/name_pattern.h"
#include "libshard/core/parse_number.h"
#include "libshard/core/split.h"

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

const NamePattern& of_one_process() {
  static const NamePattern kPattern("model-{file:05d}-of-{count:05d}.safetensors");
  return kPattern;
}

const NamePattern& of_rank() {
  static const NamePattern kPattern("shard-{rank:05d}-model-{file:05d}-of-{count:05d}.safetensors");
  return kPattern;
}

}  // namespace

std::optional<ShardName> parse_shard_name(std::string_view name) {
  ShardName result;
  if (const auto of_all = of_one_process().read<2>(name)) {
    result = {-1, (*of_all)[0], (*of_all)[1]};
  } else if (const auto shard = of_rank().read<3>(name)) {
    result = {(*shard)[0] - 1, (*shard)[1], (*shard)[2]};
    if (result.rank < 0) return std::nullopt;
  } else {
    return std::nullopt;
  }
  return std::max({result.rank + 1, result.index, result.count}) <= kMostNumber ? std::optional(result) : std::nullopt;
}

std::string to_string(const ShardName& name) {
  if (name.rank < 0) return of_one_process().write(std::array{name.index, name.count});
  return of_rank().write(std::array{name.rank + 1, name.index, name.count});
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
    const auto last = first && take_prefix(text, "-") ? take_number(text) : first;
    if (!first || !last || *last < *first || (!runs.empty() && *first <= runs.back().second)) return std::nullopt;
    runs.emplace_back(*first, *last);
  } while (take_prefix(text, ","));
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
