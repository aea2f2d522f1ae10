/// \file The order of a million names.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string_view>
#include <vector>

namespace shard {

/// Decides between two names that are equal. Called by several threads.
using NameTieLess = std::function<bool(std::uint32_t, std::uint32_t)>;

/// The indices of `names` in the order of their bytes. `tie_less` decides between equal names, and the lower index if
/// it does not. The names of a checkpoint share long prefixes, so a run of names with one prefix is sorted by the next
/// eight bytes, as numbers. Names whose eight bytes are equal form a new run (multikey quicksort with cached
/// characters; Ng and Kakehi 2007). The eight bytes are sorted one by one (American flag sort; McIlroy 1993).
/// Cost: each byte of a name is visited once, those in a common prefix twice. Memory: 16 bytes per name. Threads:
/// `threads` for many names.
std::vector<std::uint32_t> order_of_names(std::span<const std::string_view> names, const NameTieLess& tie_less,
                                          int threads);

}  // namespace shard
