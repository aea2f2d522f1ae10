/// \file
/// Many RE2 patterns that are matched against a text in few passes. Inside libshard/catalog and libshard/map only.
#pragma once

#include <re2/re2.h>
#include <re2/set.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace shard {

/// The options of every pattern that a user or a file gives: RE2 writes no log.
RE2::Options quiet_patterns();

/// Patterns in sets that are small enough for RE2's automata, so that a text is passed over once for hundreds of them.
class PatternSets {
 public:
  static constexpr std::int64_t kMaxPrograms = 1 << 19;  ///< Instructions of all patterns; each set may take 8 MiB.

  explicit PatternSets(RE2::Anchor anchor) : anchor_(anchor) {}
  /// Patterns are numbered by the caller. \returns false when all together have more than kMaxPrograms instructions.
  /// \pre a pattern that compiles, whose `program_size` is as given
  bool add(std::size_t number, const std::string& pattern, int program_size);
  /// Called once, after the last one. \returns false when they are too large.
  bool compile();
  /// Appends the numbers of the patterns that match, in no order.
  /// \returns false where a set's automaton grew too large: all numbers of that set were appended.
  bool append_matching(std::string_view text, std::vector<std::size_t>& numbers) const;

 private:
  struct PatternSet {
    std::unique_ptr<RE2::Set> patterns;
    std::vector<std::size_t> numbers;  ///< By pattern.
  };

  RE2::Anchor anchor_;
  std::vector<PatternSet> sets_;
  std::int64_t programs_ = 0, set_programs_ = 0;  ///< Instructions of all patterns, and of the last set's.
};

}  // namespace shard
