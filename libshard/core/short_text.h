/// \file Short texts for messages: counts, texts of bounded length, the first few of many names, and a search for a
///   name. Names come from files and may be megabytes long.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace shard {

/// For example "1 tensor", "2 tensors". If the plural is not `word` with an s: plural(2, "axis", "axes").
std::string plural(std::int64_t count, std::string_view word, std::string_view many = {});

/// The longest text of a message.
inline constexpr std::size_t kMaxMessageBytes = 2048;

/// The length of the longest front of `text` that has at most `limit` bytes and splits no UTF-8 character.
std::size_t front_of_characters(std::string_view text, std::size_t limit);

/// The text. If it is longer than `limit`, its begin and its end with "... (20971520 bytes) ..." between them. Splits
/// no UTF-8 character. The result is never longer than `limit`. \pre limit >= 256
std::string clipped(std::string_view text, std::size_t limit = kMaxMessageBytes);

/// A list of names that grows. Only the first few are kept.
class FirstNames {
 public:
  void add(std::string_view name);
  std::size_t count() const { return count_; }  ///< The number of all added names.
  /// "'a', 'b', 'c' and 7 more". Long names are clipped.
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
