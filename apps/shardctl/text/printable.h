/// \file
/// Texts that are safe to show. Names, types and values come from files. They must not control a terminal, start a new
/// line, or change the text direction.
#pragma once

#include <string>
#include <string_view>

namespace shard::app {

/// A quick check: true if the text is plain ASCII that printable() would not change.
bool is_plain_ascii(std::string_view text);

/// The text with control characters (is_control()) and bytes that are not UTF-8 as \xHH, or \uHHHH above U+009F.
std::string printable(std::string_view text);

}  // namespace shard::app
