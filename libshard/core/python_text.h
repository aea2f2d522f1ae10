/// \file
/// Strings, bytes and numbers as Python's repr() writes them.
#pragma once

#include <string>
#include <string_view>

namespace shard {

/// `text` as Python's repr() writes it between `quote`s: backslashes, the quote and control characters escaped; of
/// `bytes` also those past ASCII, as \xNN. Other text stays UTF-8. A text may be handed over in pieces: no escape looks
/// at its neighbours.
std::string python_escaped(std::string_view text, bool bytes, char quote);

/// repr() of a str or (b'...') a bytes object: in single quotes, in double ones where only those need no escape.
std::string python_repr(std::string_view text, bool bytes);

/// Decimal digits of an integer in two's complement, little-endian (ValueKind::kLong). Cost: squared, so that past 512
/// bytes only the size is said: "<int of 1000 bytes>".
std::string integer_text(std::string_view bytes);

/// "10.0", "1e-05", "nan", "inf", "-inf".
std::string real_text(double value);

}  // namespace shard
