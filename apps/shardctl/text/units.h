/// \file
/// Sizes and durations for people.
#pragma once

#include <cstdint>
#include <string>

namespace shard::app {

/// "16.06 GB", "812 bytes".
std::string human_bytes(std::int64_t bytes);
/// "45 s", "12 min 5 s", "3 h 20 min", "2 d 7 h". \pre not negative
std::string human_seconds(double seconds);

}  // namespace shard::app
