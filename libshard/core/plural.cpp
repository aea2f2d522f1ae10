#include "libshard/core/plural.h"

#include <fmt/format.h>

namespace shard {

std::string plural(std::int64_t count, std::string_view word, std::string_view many) {
  if (count == 1) return fmt::format("1 {}", word);
  return many.empty() ? fmt::format("{} {}s", count, word) : fmt::format("{} {}", count, many);
}

}  // namespace shard
