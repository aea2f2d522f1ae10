#include "libshard/core/first_names.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cctype>

#include "libshard/core/clipped.h"

namespace shard {

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
