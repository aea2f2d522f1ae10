#include "libshard/core/first_names.h"

#include <fmt/format.h>

#include "libshard/core/clipped.h"

namespace shard {

namespace {

constexpr std::size_t kShown = 3, kLongestName = 256;

}  // namespace

void FirstNames::add(std::string_view name) {
  if (count_++ >= kShown) return;
  text_ += fmt::format("{}'{}'", text_.empty() ? "" : ", ", clipped(name, kLongestName));
}

std::string FirstNames::text() const {
  return count_ <= kShown ? text_ : fmt::format("{} and {} more", text_, count_ - kShown);
}

}  // namespace shard
