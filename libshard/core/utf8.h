/// \file
/// UTF-8: the characters of texts that come from files.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace shard {

struct CodePoint {
  unsigned value = 0;
  std::size_t length = 0;  ///< In bytes. 0: not the start of a UTF-8 character.

  bool is_surrogate() const { return value >= 0xD800 && value < 0xE000; }
};

/// Decodes the character at the front of `text`. Encoded surrogates, which pickles may contain, are decoded too.
/// \pre `text` is not empty
CodePoint decode_utf8(std::string_view text);

/// The number of bytes at the front of `text` that one U+FFFD replaces: an incomplete character, or one byte (as
/// Unicode recommends and Python does). \pre `text` is not empty and does not start with a character
std::size_t invalid_prefix(std::string_view text);

/// True for valid UTF-8 without surrogates. Cost: linear; ASCII at 8 bytes per step.
bool is_utf8(std::string_view text);

/// Does the same, but also accepts encoded surrogates, as Python's "surrogatepass" does.
bool is_python_utf8(std::string_view text);

/// \pre `code` is a Unicode scalar value
void append_utf8(std::uint32_t code, std::string& out);

/// True for C0 and C1 controls, DEL, line and paragraph separators, and marks of the text direction: characters that
/// control a terminal or hide text.
bool is_control(unsigned code_point);

}  // namespace shard
