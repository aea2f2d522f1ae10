#include "libshard/core/python_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

namespace shard {
namespace {

constexpr std::size_t kMaxDecimalBytes = 512;

/// 32-bit digits of the magnitude, lowest first.
std::vector<std::uint32_t> magnitude(std::string_view bytes, bool negative) {
  std::vector<std::uint32_t> digits((bytes.size() + 4) / 4, negative ? 0xFFFFFFFFU : 0);
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    const auto shift = static_cast<unsigned>(8 * (i % 4));
    digits[i / 4] &= ~(0xFFU << shift);
    digits[i / 4] |= static_cast<std::uint32_t>(static_cast<unsigned char>(bytes[i])) << shift;
  }
  std::uint64_t carry = 1;
  for (std::size_t i = 0; negative && i < digits.size(); ++i) {
    carry += static_cast<std::uint32_t>(~digits[i]);
    digits[i] = static_cast<std::uint32_t>(carry);
    carry >>= 32;
  }
  return digits;
}

std::string escape(char c, bool bytes, char quote) {
  if (c == quote || c == '\\') return {'\\', c};
  if (c == '\n') return "\\n";
  if (c == '\r') return "\\r";
  if (c == '\t') return "\\t";
  const auto byte = static_cast<unsigned char>(c);
  return byte < 0x20 || byte == 0x7F || (bytes && byte > 0x7F) ? fmt::format("\\x{:02x}", byte) : std::string(1, c);
}

template <class Real>
std::string text_of_real(Real value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  std::string text = fmt::format("{}", value);
  if (text.find_first_of(".e") == std::string::npos) text += ".0";
  return text;
}

}  // namespace

std::string python_escaped(std::string_view text, bool bytes, char quote) {
  std::string result;
  result.reserve(text.size());
  for (const char c : text) result += escape(c, bytes, quote);
  return result;
}

std::string python_repr(std::string_view text, bool bytes) {
  const bool plain = text.find('\'') == std::string_view::npos || text.find('"') != std::string_view::npos;
  const char quote = plain ? '\'' : '"';
  return fmt::format("{}{}{}{}", bytes ? "b" : "", quote, python_escaped(text, bytes, quote), quote);
}

std::string integer_text(std::string_view bytes) {
  if (bytes.empty()) return "0";
  if (bytes.size() > kMaxDecimalBytes) return fmt::format("<int of {} bytes>", bytes.size());
  const bool negative = (static_cast<unsigned char>(bytes.back()) & 0x80) != 0;
  std::vector<std::uint32_t> digits = magnitude(bytes, negative);
  std::string text;  // The digits in reverse order, by repeated division by 10^9.
  while (!digits.empty()) {
    std::uint64_t rest = 0;
    for (std::size_t i = digits.size(); i-- > 0;) {
      rest = rest << 32 | digits[i];
      digits[i] = static_cast<std::uint32_t>(rest / 1'000'000'000);
      rest %= 1'000'000'000;
    }
    while (!digits.empty() && digits.back() == 0) digits.pop_back();
    std::string part = fmt::format("{:09}", rest);
    std::reverse(part.begin(), part.end());
    text += part;
  }
  text.erase(text.find_last_not_of('0') + 1);
  if (text.empty()) return "0";
  if (negative) text += '-';
  std::reverse(text.begin(), text.end());
  return text;
}

std::string real_text(double value) { return text_of_real(value); }

std::string real_text(float value) { return text_of_real(value); }

}  // namespace shard
