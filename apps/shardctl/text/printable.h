/// \file
/// Texts that are safe to show. Names, types and values come from files: they must not steer a terminal, begin a line,
/// or turn the direction of reading.
#pragma once

#include <string>
#include <string_view>

namespace shard::app {

/// True where printable() would change nothing, for plain ASCII only: a quick look.
bool is_plain_ascii(std::string_view text);

/// The text with what is_control() and bytes that are not UTF-8 as \xHH, or \uHHHH above U+009F.
std::string printable(std::string_view text);

}  // namespace shard::app
