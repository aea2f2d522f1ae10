/// \file
/// Texts of bounded length, for messages: names come from files and may be megabytes long.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace shard {

/// The longest text of a message.
inline constexpr std::size_t kMaxMessageBytes = 2048;

/// The length of the longest front of `text` that has at most `limit` bytes and splits no UTF-8 character.
std::size_t front_of_characters(std::string_view text, std::size_t limit);

/// The text. If it is longer than `limit`, its begin and its end with "... (20971520 bytes) ..." between them. Splits
/// no UTF-8 character. The result is never longer than `limit`. \pre limit >= 256
std::string clipped(std::string_view text, std::size_t limit = kMaxMessageBytes);

}  // namespace shard
