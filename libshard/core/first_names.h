/// \file
/// Names in messages: the first few of many, and whether one is there.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace shard {

class FirstNames {
 public:
  void add(std::string_view name);
  std::size_t count() const { return count_; }  ///< Of all that were added.
  /// "'a', 'b', 'c' and 7 more"; long names are clipped.
  std::string text() const;

 private:
  std::size_t count_ = 0;
  std::string text_;
};

/// Whether a message has that name as a whole: not as a part of a word or of a longer name. The end of a path is
/// a name.
bool mentions(std::string_view text, std::string_view name);

}  // namespace shard
