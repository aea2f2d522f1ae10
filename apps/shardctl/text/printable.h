/// \file
/// What of a text may be shown as it is. Names, types and values come from files: they must not steer a terminal, begin
/// a line, or turn the direction of reading.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace shard::app {

struct CodePoint {
  unsigned value = 0;
  std::size_t length = 0;  ///< In bytes; 0: not the start of UTF-8.
};

/// Decodes UTF-8 at the front of `text`, surrogates included. \pre `text` is not empty
CodePoint decode_utf8(std::string_view text);

/// True for C0 and C1 controls, DEL, line and paragraph separators, and marks of the direction of reading.
bool is_control(unsigned code_point);

/// True where printable() would change nothing, for plain ASCII only: a quick look.
bool is_plain_ascii(std::string_view text);

/// The text with what is_control() and bytes that are not UTF-8 as \xHH, or \uHHHH above U+009F.
std::string printable(std::string_view text);

}  // namespace shard::app
