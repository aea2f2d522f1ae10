#include "libshard/core/clipped.h"

#include <fmt/format.h>

namespace shard {

namespace {

constexpr std::size_t kBetween = 48;  ///< The space for the text between begin and end.

bool continues(std::string_view text, std::size_t at) { return (static_cast<unsigned char>(text[at]) & 0xC0) == 0x80; }

}  // namespace

std::size_t front_of_characters(std::string_view text, std::size_t limit) {
  if (text.size() <= limit) return text.size();
  std::size_t end = limit;
  while (end > 0 && limit - end < 3 && continues(text, end)) --end;
  return continues(text, end) ? limit : end;  // Text that is not UTF-8 may be split anywhere.
}

std::string clipped(std::string_view text, std::size_t limit) {
  if (text.size() <= limit) return std::string(text);
  const std::size_t front = front_of_characters(text, limit - limit / 4 - kBetween);
  std::size_t back = text.size() - limit / 4;
  for (int i = 0; i < 3 && back < text.size() && continues(text, back); ++i) ++back;
  return fmt::format("{}... ({} bytes) ...{}", text.substr(0, front), text.size(), text.substr(back));
}

}  // namespace shard
