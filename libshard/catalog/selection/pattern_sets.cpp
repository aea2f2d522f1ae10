#include "libshard/catalog/selection/pattern_sets.h"

#include <fmt/format.h>

#include <algorithm>
#include <ctime>

#include "libshard/core/error.h"

namespace shard {

namespace {

constexpr std::int64_t kSetPrograms = 1 << 14;  // Instructions of one set's patterns; keeps their automaton small.
constexpr std::int64_t kAutomata = 64 << 20, kLeastAutomaton = 2 << 20, kMostAutomaton = 8 << 20;  // In bytes.

}  // namespace

RE2::Options quiet_patterns() {
  RE2::Options options;
  options.set_log_errors(false);
  return options;
}

std::unique_ptr<RE2> PatternSizes::compile(std::string_view pattern) {
  texts_ += pattern.size();
  if (pattern.size() > kMaxText || texts_ > kMaxTexts) return nullptr;
  auto compiled = std::make_unique<RE2>(re2::StringPiece(pattern.data(), pattern.size()), quiet_patterns());
  if (compiled->ok()) programs_ += compiled->ProgramSize();
  return programs_ > kMaxPrograms ? nullptr : std::move(compiled);
}

std::unique_ptr<RE2> PatternSets::add(std::size_t number, const std::string& pattern) {
  std::unique_ptr<RE2> compiled = sizes_.compile(pattern);
  if (compiled == nullptr || !compiled->ok()) return compiled;
  if (sets_.empty() || (set_programs_ += compiled->ProgramSize()) > kSetPrograms) {
    sets_.emplace_back();
    set_programs_ = compiled->ProgramSize();
  }
  sets_.back().added.emplace_back(number, pattern);
  return compiled;
}

bool PatternSets::compile() {
  RE2::Options options = quiet_patterns();
  const std::int64_t share = kAutomata / std::max<std::int64_t>(1, std::ssize(sets_));
  options.set_max_mem(std::clamp(share, kLeastAutomaton, kMostAutomaton));
  for (PatternSet& set : sets_) {
    set.patterns = std::make_unique<RE2::Set>(options, anchor_);
    for (const auto& [number, pattern] : set.added) {
      set.patterns->Add(pattern, nullptr);
      set.numbers.push_back(number);
    }
    set.added = {};
    if (!set.patterns->Compile()) return false;
  }
  return true;
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

std::int64_t MatchTime::processor_ns() {
  std::timespec now{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return std::int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

/// Wall time is cheap to measure, and is at least the processor time. On a busy machine it is longer, so the process's
/// own clock decides in the end.
void MatchTime::add(std::chrono::nanoseconds taken, std::string_view name) const {
  const std::int64_t allowed = allowed_ += kNsPerByte * static_cast<std::int64_t>(name.size());
  if ((taken_ += taken.count()) <= allowed || processor_ns() - processor_begin_ <= allowed) return;
  throw Error(ErrorCode::kUnsupported, "cannot match the names of the tensors: the document's patterns are too slow")
      .of_tensor(name)
      .because(fmt::format("they took more than {:.1f} s of processor time", static_cast<double>(allowed) / 1e9));
}

}  // namespace shard
