#include "apps/shardctl/request/request.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "libshard/core/ascii.h"
#include "libshard/core/parse_number.h"

namespace shard::app {
namespace {

struct Suffix {
  std::string_view name;
  double factor;
};
constexpr std::array<Suffix, 14> kSuffixes{{{"", 1},
                                            {"b", 1},
                                            {"k", 1e3},
                                            {"kb", 1e3},
                                            {"m", 1e6},
                                            {"mb", 1e6},
                                            {"g", 1e9},
                                            {"gb", 1e9},
                                            {"t", 1e12},
                                            {"tb", 1e12},
                                            {"kib", 1024.0},
                                            {"mib", 1024.0 * 1024},
                                            {"gib", 1024.0 * 1024 * 1024},
                                            {"tib", 1024.0 * 1024 * 1024 * 1024}}};

Error bad_size(const std::string& text, const std::string& option) {
  return usage(fmt::format("{} '{}' is not a size", option, text))
      .because("a size is a number with an optional unit: 5GB is 5000000000 bytes, 5GiB is 5368709120")
      .hint(fmt::format("give a size such as {} 5GB", option));
}

}  // namespace

Error usage(const std::string& message) { return Error(ErrorCode::kInvalidArgument, message); }

std::int64_t parse_size(const std::string& text, const std::string& option) {
  std::string_view rest = text;
  const std::optional<double> number = take_number<double>(rest);
  if (!number || !std::isfinite(*number) || *number < 0) throw bad_size(text, option);
  rest.remove_prefix(std::min(rest.find_first_not_of(' '), rest.size()));
  const auto* suffix = std::ranges::find(kSuffixes, lower_case(std::string(rest)), &Suffix::name);
  if (suffix == kSuffixes.end()) throw bad_size(text, option);
  const double bytes = *number * suffix->factor;
  if (bytes >= 9.2e18) throw bad_size(text, option);
  return static_cast<std::int64_t>(std::llround(bytes));
}

}  // namespace shard::app
