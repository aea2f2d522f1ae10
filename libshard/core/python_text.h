/// \file
/// Strings, bytes and numbers as Python's repr() writes them.
#pragma once

#include <string>
#include <string_view>

namespace shard {

/// The text between the `quote`s of Python's repr(): backslashes, the quote and control characters are escaped, and in
/// `bytes` also those past ASCII, as \xNN. Other text stays UTF-8. A text may be passed in pieces, because no escape
/// depends on its neighbours.
std::string python_escaped(std::string_view text, bool bytes, char quote);

/// The repr() of a str or (b'...') a bytes object: in single quotes, or in double ones if only those need no escape.
std::string python_repr(std::string_view text, bool bytes);

/// The decimal digits of an integer in two's complement, little-endian (ValueKind::kLong). The cost is quadratic, so
/// for more than 512 bytes the result is only the size: "<int of 1000 bytes>".
std::string integer_text(std::string_view bytes);

/// "10.0", "1e-05", "nan", "inf", "-inf".
std::string real_text(double value);
std::string real_text(float value);  ///< The shortest text of a float32, as numpy prints it.

}  // namespace shard
