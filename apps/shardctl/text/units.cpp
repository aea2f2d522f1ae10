#include "apps/shardctl/text/units.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "libshard/core/short_text.h"

namespace shard::app {

std::string human_bytes(std::int64_t bytes) {
  if (bytes == 1) return "1 byte";
  if (bytes < 1000) return plural(bytes, "byte");
  constexpr std::array<const char*, 6> kUnits{"kB", "MB", "GB", "TB", "PB", "EB"};
  constexpr double kRoundsUp = 999.5;  // Rounds to 1000 with three digits.
  double value = static_cast<double>(bytes) / 1e3;
  std::size_t unit = 0;
  for (; value >= kRoundsUp && unit + 1 < kUnits.size(); ++unit) value /= 1000;
  return fmt::format("{:.3g} {}", value, kUnits[unit]);
}

std::string human_seconds(double seconds) {
  const auto whole = static_cast<std::int64_t>(std::min(std::round(seconds), 1e12));
  if (whole < 60) return fmt::format("{} s", whole);
  if (whole < 3600) return fmt::format("{} min {} s", whole / 60, whole % 60);
  if (whole < 86400) return fmt::format("{} h {} min", whole / 3600, whole % 3600 / 60);
  return fmt::format("{} d {} h", whole / 86400, whole % 86400 / 3600);
}

}  // namespace shard::app
