/// \file Names in messages: the first few of many, and a search for a name in a message.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace shard {

/// A list of names that grows; only the first few are kept.
class FirstNames {
 public:
  void add(std::string_view name);
  std::size_t count() const { return count_; }  ///< The number of all added names.
  /// "'a', 'b', 'c' and 7 more"; long names are clipped.
  std::string text() const;

 private:
  std::size_t count_ = 0;
  std::string text_;
};

/// FirstNames::text of all `names`.
template <class Names>
std::string first_names(const Names& names) {
  FirstNames first;
  for (const std::string_view name : names) first.add(name);
  return first.text();
}

/// "1, 2, 3 and 7 more": `first` are the first of `count` numbers.
std::string first_numbers(std::span<const std::int64_t> first, std::int64_t count);

/// Whether a message contains that name as a whole, not as a part of a word or of a longer name. The end of a path
/// counts as a name.
bool mentions(std::string_view text, std::string_view name);

}  // namespace shard
