#include "libshard/catalog/pattern_sets.h"

#include <algorithm>

namespace shard {

namespace {

constexpr std::int64_t kSetPrograms = 1 << 14;  // Instructions of the patterns of one set: their automaton stays small.

}  // namespace

RE2::Options quiet_patterns() {
  RE2::Options options;
  options.set_log_errors(false);
  return options;
}

bool PatternSets::add(std::size_t number, const std::string& pattern, int program_size) {
  if ((programs_ += program_size) > kMaxPrograms) return false;
  if (sets_.empty() || (set_programs_ += program_size) > kSetPrograms) {
    sets_.emplace_back(std::make_unique<RE2::Set>(quiet_patterns(), anchor_), std::vector<std::size_t>());
    set_programs_ = program_size;
  }
  sets_.back().patterns->Add(pattern, nullptr);
  sets_.back().numbers.push_back(number);
  return true;
}

bool PatternSets::compile() {
  return std::ranges::all_of(sets_, [](const PatternSet& set) { return set.patterns->Compile(); });
}

bool PatternSets::append_matching(std::string_view text, std::vector<std::size_t>& numbers) const {
  bool is_exact = true;
  for (const PatternSet& set : sets_) {
    std::vector<int> matched;
    RE2::Set::ErrorInfo error{};
    const bool is_any = set.patterns->Match(re2::StringPiece(text.data(), text.size()), &matched, &error);
    if (!is_any && error.kind != RE2::Set::kNoError) {
      is_exact = false;
      numbers.insert(numbers.end(), set.numbers.begin(), set.numbers.end());
    }
    for (const int pattern : matched) numbers.push_back(set.numbers[static_cast<std::size_t>(pattern)]);
  }
  return is_exact;
}

}  // namespace shard
