#include "libshard/core/short_text.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cctype>

namespace shard {

std::string plural(std::int64_t count, std::string_view word, std::string_view many) {
  if (count == 1) return fmt::format("1 {}", word);
  return many.empty() ? fmt::format("{} {}s", count, word) : fmt::format("{} {}", count, many);
}

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

namespace {

constexpr std::size_t kShown = 3, kLongestName = 256;

}  // namespace

void FirstNames::add(std::string_view name) {
  if (count_++ >= kShown) return;
  text_ += fmt::format("{}'{}'", text_.empty() ? "" : ", ", clipped(name, kLongestName));
}

std::string FirstNames::text() const {
  return count_ <= kShown ? text_ : fmt::format("{} and {} more", text_, count_ - kShown);
}

std::string first_numbers(std::span<const std::int64_t> first, std::int64_t count) {
  const std::int64_t more = count - std::ssize(first);
  return fmt::format("{}{}", fmt::join(first, ", "), more > 0 ? fmt::format(" and {} more", more) : "");
}

bool mentions(std::string_view text, std::string_view name) {
  constexpr std::string_view kInNames = "_./-+=@%~";
  const auto is_part = [&](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) != 0 || kInNames.find(c) != std::string_view::npos;
  };
  for (std::size_t at = text.find(name); at != std::string_view::npos; at = text.find(name, at + 1)) {
    std::string_view rest = text.substr(at + name.size());
    if (rest.starts_with('.')) rest.remove_prefix(1);  // A period that ends a sentence, unless more text follows.
    const bool begins = at == 0 || text[at - 1] == '/' || !is_part(text[at - 1]),
               ends = rest.empty() || !is_part(rest.front());
    if (begins && ends) return true;
  }
  return false;
}

}  // namespace shard
