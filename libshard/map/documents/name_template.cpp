#include "libshard/map/documents/name_template.h"

#include <fmt/format.h>
#include <re2/re2.h>

#include <algorithm>

#include "libshard/core/ascii.h"
#include "libshard/core/error.h"

namespace shard {

namespace {

constexpr std::size_t kMaxText = 8192;  ///< The limit in bytes. Names in checkpoints are far shorter.

bool is_word(std::string_view text) { return !text.empty() && is_alphanumeric(text, "_") && !is_digit(text[0]); }

Error too_long(std::string_view text) {
  return Error(ErrorCode::kInvalidArgument,
               fmt::format("the template of names that begins with '{}' is too long", text.substr(0, 64)))
      .expected(fmt::format("at most {} bytes", kMaxText));
}

}  // namespace

NameTemplate::NameTemplate(std::string_view text) : text_(text) {
  const auto wrong = [&](std::string_view why) {
    return Error(ErrorCode::kInvalidArgument, fmt::format("'{}' is not a template of names", text)).because(why);
  };
  if (text.size() > kMaxText) throw too_long(text);
  // Each placeholder ends one literal and starts the next one, so there is always one literal more than placeholders.
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    const bool is_doubled = i + 1 < text.size() && text[i + 1] == c;
    if (c != '{' && c != '}') {
      literals_.back() += c;
    } else if (is_doubled) {
      literals_.back() += c;
      ++i;
    } else {
      const std::size_t end = text.find('}', i);
      if (c == '}' || end == std::string_view::npos) throw wrong("a brace has no partner");
      const std::string_view name = text.substr(i + 1, end - i - 1);
      if (!is_word(name)) throw wrong(fmt::format("'{{{}}}' is not a placeholder", name));
      const auto known = std::ranges::find(placeholders_, name);
      places_.push_back(static_cast<std::size_t>(known - placeholders_.begin()));
      if (known == placeholders_.end()) placeholders_.emplace_back(name);
      literals_.emplace_back();
      i = end;
    }
  }
}

std::string NameTemplate::fill(std::span<const std::string_view> values) const {
  std::string name = literals_.front();
  for (std::size_t i = 0; i < places_.size(); ++i) name.append(values[places_[i]]).append(literals_[i + 1]);
  return name;
}

NameTemplate NameTemplate::plain(std::string_view text) {
  // Single braces would be placeholders.
  std::string doubled;
  for (const char c : text) doubled.append(c == '{' || c == '}' ? 2 : 1, c);
  return NameTemplate(doubled);
}

NameTemplate NameTemplate::with(std::string_view placeholder, const NameTemplate& other) const {
  std::string text = plain(literals_.front()).text_;
  for (std::size_t i = 0; i < places_.size(); ++i) {
    const std::string& name = placeholders_[places_[i]];
    text += name == placeholder ? other.text_ : fmt::format("{{{}}}", name);
    text += plain(literals_[i + 1]).text_;
    if (text.size() > kMaxText) throw too_long(text);
  }
  return NameTemplate(text);
}

NameTemplate NameTemplate::without(std::string_view placeholder) const {
  NameTemplate shorter = *this;
  for (std::size_t i = 0; i < places_.size(); ++i) {
    if (placeholders_[places_[i]] != placeholder) continue;
    std::string& behind = shorter.literals_[i + 1];
    if (!behind.starts_with('.')) {
      throw Error(ErrorCode::kInvalidArgument, fmt::format("no dot follows '{{{}}}' in '{}'", placeholder, text_));
    }
    behind.erase(0, 1);
  }
  return shorter.with(placeholder, NameTemplate());
}

std::string NameTemplate::literal_pattern(std::size_t literal) const { return RE2::QuoteMeta(literals_[literal]); }

}  // namespace shard
