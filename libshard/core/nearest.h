/// \file
/// "Did you mean ...?": the nearest of a list of words.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace shard {

/// Damerau's edit distance (insert, delete, replace, swap neighbours), at most `limit` + 1. Cost: O(|a| * |b|).
int edit_distance(std::string_view a, std::string_view b, int limit);

/// The word nearest to `typed` (the first of equally near ones). Empty if none is near enough to be a plausible
/// correction.
std::string nearest(std::string_view typed, std::span<const std::string_view> words);

}  // namespace shard
