/// \file RE2 patterns of users and of documents. Many of them are matched against a text in few passes, and their cost
///   has limits. Inside libshard/catalog, libshard/compute, libshard/map and formats/deepspeed only.
#pragma once

#include <re2/re2.h>
#include <re2/set.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace shard {

/// The options of every pattern from a user or a file. RE2 writes no log.
RE2::Options quiet_patterns();

/// Compiles the patterns of one document, and limits their total size.
class PatternSizes {
 public:
  static constexpr std::int64_t kMaxPrograms = 1 << 19;           ///< Instructions of all patterns.
  static constexpr std::size_t kMaxText = 1 << 16;                ///< Bytes of one pattern.
  static constexpr std::size_t kMaxTexts = std::size_t{4} << 20;  ///< Bytes of all patterns.

  /// \returns null if this pattern or all together are too large; test `ok()` of any other result.
  std::unique_ptr<RE2> compile(std::string_view pattern);

 private:
  std::int64_t programs_ = 0;
  std::size_t texts_ = 0;
};

/// Groups patterns into sets that are small enough for RE2's automata, so that one pass over a text matches hundreds.
class PatternSets {
 public:
  static constexpr std::int64_t kMaxPrograms = PatternSizes::kMaxPrograms;

  explicit PatternSets(RE2::Anchor anchor) : anchor_(anchor) {}
  /// Adds a pattern, which the caller numbers.
  /// \returns the compiled pattern, or null if it or all together are too large (PatternSizes). A pattern that is not
  ///   `ok()` was not added.
  std::unique_ptr<RE2> add(std::size_t number, const std::string& pattern);
  /// Compiles the sets. Called once, after the last pattern. \returns false if they are too large. Memory: 64 MiB for
  /// the automata of all sets.
  bool compile();
  /// Appends the numbers of the patterns that match, in no order.
  /// \returns false if a set's automaton grew too large. All numbers of that set were then appended.
  bool append_matching(std::string_view text, std::vector<std::size_t>& numbers) const;

 private:
  struct PatternSet {
    std::vector<std::pair<std::size_t, std::string>> added;  ///< Until they are compiled.
    std::unique_ptr<RE2::Set> patterns{};
    std::vector<std::size_t> numbers{};  ///< Indexed by pattern.
  };

  RE2::Anchor anchor_;
  PatternSizes sizes_;
  std::vector<PatternSet> sets_;
  std::int64_t set_programs_ = 0;  ///< Instructions of the last set's patterns.
};

/// Limits the processor time for matching a document's patterns against the names of a checkpoint. Both may come from
/// untrusted sources, and no limit on instructions and bytes separates honest patterns from those that are built to be
/// slow. Threads: any.
class MatchTime {
 public:
  /// Longer names match no pattern of a document.
  static constexpr std::size_t kLongestName = 4096;
  /// The limit on the time of all calls. Patterns of honest documents use a tenth of it.
  static constexpr std::int64_t kFreeNs = 500'000'000, kNsPerByte = 50;

  /// Calls `match` and returns its result. \throws Error kUnsupported  all calls together took too long
  template <class Match>
  auto operator()(std::string_view name, Match&& match) const {
    const auto begin = std::chrono::steady_clock::now();
    auto result = match();
    add(std::chrono::steady_clock::now() - begin, name);
    return result;
  }

 private:
  void add(std::chrono::nanoseconds taken, std::string_view name) const;
  static std::int64_t processor_ns();

  const std::int64_t processor_begin_ = processor_ns();
  mutable std::atomic<std::int64_t> taken_{0}, allowed_{kFreeNs};  ///< Nanoseconds.
};

}  // namespace shard
