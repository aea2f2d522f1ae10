#include "libshard/core/utf8.h"

#include <array>
#include <cstdint>
#include <cstring>

namespace shard {

namespace {

unsigned byte_at(std::string_view text, std::size_t i) {
  return static_cast<unsigned>(static_cast<unsigned char>(text[i]));
}

/// Bytes of the character that starts with `lead`; 0 if none does.
std::size_t length_after(unsigned lead) {
  if (lead < 0x80) return 1;
  return lead < 0xC2 ? 0 : lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : lead < 0xF5 ? 4 : 0;
}

std::size_t ascii_at_front(std::string_view text) {
  std::size_t at = 0;
  for (std::uint64_t eight = 0; text.size() - at >= sizeof(eight); at += sizeof(eight)) {
    std::memcpy(&eight, text.data() + at, sizeof(eight));
    if ((eight & 0x8080808080808080U) != 0) break;
  }
  while (at < text.size() && byte_at(text, at) < 0x80) ++at;
  return at;
}

bool consists_of_characters(std::string_view text, bool surrogates) {
  while (!text.empty()) {
    const CodePoint point = decode_utf8(text);
    if (point.length == 0 || (point.is_surrogate() && !surrogates)) return false;
    text.remove_prefix(point.length == 1 ? ascii_at_front(text) : point.length);
  }
  return true;
}

}  // namespace

CodePoint decode_utf8(std::string_view text) {
  const unsigned lead = byte_at(text, 0);
  if (lead < 0x80) return {lead, 1};
  const std::size_t length = length_after(lead);
  if (length == 0 || text.size() < length) return {};
  unsigned value = lead & (0x7FU >> length);
  for (std::size_t i = 1; i < length; ++i) {
    if ((byte_at(text, i) & 0xC0) != 0x80) return {};
    value = value << 6 | (byte_at(text, i) & 0x3F);
  }
  const bool valid = value >= (length == 2 ? 0x80U : length == 3 ? 0x800U : 0x10000U) && value <= 0x10FFFF;
  return valid ? CodePoint{value, length} : CodePoint{};
}

std::size_t invalid_prefix(std::string_view text) {
  const unsigned lead = byte_at(text, 0);
  // The second byte excludes overlong forms, surrogates and code points past U+10FFFF.
  const unsigned least = lead == 0xE0 ? 0xA0 : lead == 0xF0 ? 0x90 : 0x80;
  const unsigned most = lead == 0xED ? 0x9F : lead == 0xF4 ? 0x8F : 0xBF;
  std::size_t i = 1;
  for (const std::size_t length = length_after(lead); i < length && i < text.size(); ++i) {
    const unsigned byte = byte_at(text, i);
    if (byte < (i == 1 ? least : 0x80) || byte > (i == 1 ? most : 0xBF)) break;
  }
  return i;
}

bool is_utf8(std::string_view text) { return consists_of_characters(text, false); }

bool is_python_utf8(std::string_view text) { return consists_of_characters(text, true); }

void append_utf8(std::uint32_t code, std::string& out) {
  constexpr std::array<std::uint32_t, 4> kLeads{0, 0xC0, 0xE0, 0xF0};
  const unsigned more = code < 0x80 ? 0 : code < 0x800 ? 1 : code < 0x10000 ? 2 : 3;  // Bytes after the first.
  out += static_cast<char>(kLeads[more] | (code >> (6 * more)));
  for (unsigned i = more; i-- > 0;) out += static_cast<char>(0x80 | ((code >> (6 * i)) & 0x3F));
}

bool is_control(unsigned code_point) {
  const auto within = [code_point](unsigned first, unsigned last) { return code_point >= first && code_point <= last; };
  return code_point < 0x20 || within(0x7F, 0x9F) || code_point == 0x061C || within(0x200E, 0x200F) ||
         within(0x2028, 0x202E) || within(0x2066, 0x2069);
}

}  // namespace shard
