/// \file
/// Sizes and durations for people.
#pragma once

#include <cstdint>
#include <string>

namespace shard::app {

/// "812 bytes", "1.6 kB", "16.1 GB": at most three digits.
std::string human_bytes(std::int64_t bytes);
/// "45 s", "12 min 5 s", "3 h 20 min", "2 d 7 h". \pre not negative
std::string human_seconds(double seconds);

}  // namespace shard::app
