/// \file
/// The first few of many names, for one line of a message.
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

}  // namespace shard
