#include "libshard/core/name_pattern.h"

#include <algorithm>
#include <utility>

#include "libshard/core/parse_number.h"

namespace shard {

namespace {

constexpr std::string_view kDecimalDigits = "0123456789";

std::size_t digits_at_front(std::string_view text) {
  return std::min(text.find_first_not_of(kDecimalDigits), text.size());
}

/// Sets the name and the digits of a field from the text between its braces. \returns false if it is not a field.
bool parse_field(std::string_view text, NamePattern::Part& part) {
  const std::size_t colon = text.find(':');
  part.field = text.substr(0, colon);
  if (part.field.empty()) return false;
  if (colon == std::string_view::npos) return true;
  const std::string_view form = text.substr(colon + 1);
  if (form.size() != 3 || form[0] != '0' || form[1] < '1' || form[1] > '9' || form[2] != 'd') return false;
  part.digits = static_cast<std::size_t>(form[1] - '0');
  return true;
}

}  // namespace

std::string NamePattern::Part::padded(std::string value) const {
  if (value.size() < digits) value.insert(0, digits - value.size(), '0');
  return value;
}

std::optional<NamePattern> NamePattern::parse(std::string_view text) {
  NamePattern pattern;
  while (true) {
    const std::size_t open = text.find('{');
    Part part{std::string(text.substr(0, open)), {}};
    if (part.text.find('}') != std::string::npos) return std::nullopt;
    if (open == std::string_view::npos) {
      pattern.parts_.push_back(std::move(part));
      return pattern;
    }
    const std::size_t close = text.find('}', open);
    if (close == std::string_view::npos) return std::nullopt;
    const std::string_view field = text.substr(open + 1, close - open - 1);
    if (field.find('{') != std::string_view::npos || !parse_field(field, part)) return std::nullopt;
    pattern.parts_.push_back(std::move(part));
    text.remove_prefix(close + 1);
  }
}

bool NamePattern::read(std::string_view name, std::span<std::int64_t> numbers) const {
  for (std::size_t i = 0; i < parts_.size(); ++i) {
    if (!name.starts_with(parts_[i].text)) return false;
    name.remove_prefix(parts_[i].text.size());
    if (parts_[i].field.empty()) break;
    const std::optional<std::int64_t> number = take_natural(name);
    if (!number) return false;
    numbers[i] = *number;
  }
  return name.empty();
}

bool NamePattern::fits(std::string_view name) const {
  std::vector<std::int64_t> numbers(parts_.size() - 1);
  return read(name, numbers);
}

std::string NamePattern::write(std::span<const std::int64_t> numbers) const {
  std::string name;
  for (std::size_t i = 0; i < parts_.size(); ++i) {
    name += parts_[i].text;
    if (!parts_[i].field.empty()) name += parts_[i].padded(std::to_string(numbers[i]));
  }
  return name;
}

std::optional<CountedName> read_counted_name(std::string_view name) {
  constexpr std::string_view kOf = "-of-";
  constexpr std::size_t kMostDigits = 9;
  const auto is_number = [](std::string_view text) {
    return !text.empty() && text.size() <= kMostDigits && digits_at_front(text) == text.size();
  };
  const std::size_t of = name.rfind(kOf);
  if (of == std::string_view::npos) return std::nullopt;
  const std::string_view front = name.substr(0, of), back = name.substr(of + kOf.size());
  const std::size_t dash = front.rfind('-');
  if (dash == std::string_view::npos) return std::nullopt;
  const std::size_t end = std::min(back.find('.'), back.size());
  const CountedName found{front.substr(0, dash + 1), front.substr(dash + 1), back.substr(0, end), back.substr(end)};
  return is_number(found.number) && is_number(found.count) ? std::optional(found) : std::nullopt;
}

std::vector<std::string> cut_at_numbers(std::string_view name) {
  std::vector<std::string> pieces;
  for (bool is_number = false; !name.empty() || pieces.empty(); is_number = !is_number) {
    const std::size_t size =
        is_number ? digits_at_front(name) : std::min(name.find_first_of(kDecimalDigits), name.size());
    pieces.emplace_back(name.substr(0, size));
    name.remove_prefix(size);
  }
  return pieces;
}

std::string without_numbers(std::string_view name) {
  const std::vector<std::string> pieces = cut_at_numbers(name);
  std::string text;
  for (std::size_t i = 0; i < pieces.size(); ++i) text += i % 2 == 1 ? "#" : pieces[i];
  return text;
}

std::string shell_pattern(std::span<const std::string> names) {
  std::vector<std::string> pattern = cut_at_numbers(names.front());
  for (const std::string& name : names) {
    const std::vector<std::string> pieces = cut_at_numbers(name);
    for (std::size_t i = 1; i < pieces.size(); i += 2) {
      if (pieces[i] != pattern[i]) pattern[i] = "*";
    }
  }
  std::string text;
  for (const std::string& piece : pattern) text += piece;
  return text;
}

}  // namespace shard
