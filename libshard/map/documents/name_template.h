/// \file
/// NameTemplate: a name with placeholders, `model.layers.{l}.mlp.up_proj.weight`.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace shard {

/// A parsed template. `{{` and `}}` are literal braces.
class NameTemplate {
 public:
  NameTemplate() = default;
  /// \throws Error kInvalidArgument  an unbalanced brace, or an empty or malformed placeholder.
  explicit NameTemplate(std::string_view text);

  const std::string& text() const { return text_; }
  /// The placeholders without duplicates, in the order of their first occurrence.
  const std::vector<std::string>& placeholders() const { return placeholders_; }
  /// The name for these values, one per placeholder.
  std::string fill(std::span<const std::string_view> values) const;
  /// The template with a placeholder replaced by a different template. \throws Error kInvalidArgument  it is too long
  NameTemplate with(std::string_view placeholder, const NameTemplate& other) const;
  /// A template for text without placeholders.
  static NameTemplate plain(std::string_view text);
  /// The template without a placeholder and the dot after it.
  /// \throws Error kInvalidArgument  no dot follows it
  NameTemplate without(std::string_view placeholder) const;
  /// An RE2 pattern that matches all names of this form. `pattern_of(placeholder)` is the pattern of a placeholder.
  /// Each occurrence of a placeholder is a group, see `groups`.
  template <class PatternOf>
  std::string pattern(PatternOf&& pattern_of) const {
    std::string result = literal_pattern(0);
    for (std::size_t i = 0; i < places_.size(); ++i) {
      result += "(" + std::string(pattern_of(placeholders_[places_[i]])) + ")" + literal_pattern(i + 1);
    }
    return result;
  }
  /// By group of the pattern: the index of its placeholder. All groups of one placeholder must match the same text.
  const std::vector<std::size_t>& groups() const { return places_; }

 private:
  std::string literal_pattern(std::size_t literal) const;

  std::string text_;
  std::vector<std::string> literals_{""};  ///< The texts around the placeholders: one more than there are.
  std::vector<std::size_t> places_;        ///< Indices into placeholders_.
  std::vector<std::string> placeholders_;
};

}  // namespace shard
