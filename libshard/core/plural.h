/// \file
/// Counts in messages.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace shard {

/// For example "1 tensor", "2 tensors". If the plural is not `word` with an s: plural(2, "axis", "axes").
std::string plural(std::int64_t count, std::string_view word, std::string_view many = {});

}  // namespace shard
