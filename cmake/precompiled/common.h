/// \file
/// The headers that most sources include, compiled once for all (cmake/targets.cmake). Sources still include what they
/// use: scripts/check compiles each without this file.
#pragma once

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <charconv>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <exception>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <numeric>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <variant>
#include <vector>

// fmt 9 compiles its whole formatter into every source that formats a range, two seconds each, although its library has
// it: https://github.com/fmtlib/fmt/issues/2377
#if FMT_VERSION >= 90000 && FMT_VERSION < 100000 && !defined(__clang__)
extern template void fmt::detail::vformat_to<char>(fmt::detail::buffer<char>&, fmt::string_view, fmt::format_args,
                                                   fmt::detail::locale_ref);
#endif
