/// \file
/// NameTemplate: a name with placeholders, `model.layers.{l}.mlp.up_proj.weight`.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace shard {

/// A parsed template. `{{` and `}}` are plain braces.
class NameTemplate {
 public:
  NameTemplate() = default;
  /// \throws Error kInvalidArgument  a brace without its partner, an empty or malformed placeholder.
  explicit NameTemplate(std::string_view text);

  const std::string& text() const { return text_; }
  /// Each placeholder once, in the order in which it first stands.
  const std::vector<std::string>& placeholders() const { return placeholders_; }
  /// The name for these values, one a placeholder.
  std::string fill(std::span<const std::string_view> values) const;
  /// The template with another one in place of a placeholder.
  NameTemplate with(std::string_view placeholder, const NameTemplate& other) const;
  /// Of text that is no template.
  static NameTemplate plain(std::string_view text);
  /// The template without a placeholder and the dot behind it.
  /// \throws Error kInvalidArgument  no dot stands there
  NameTemplate without(std::string_view placeholder) const;
  /// RE2 for all names of this form: `pattern_of(placeholder)` is what a placeholder may be. The first place of each is
  /// a group, in order; of one that repeats the others are groups too, see `groups`.
  template <class PatternOf>
  std::string pattern(PatternOf&& pattern_of) const {
    std::string result = literal_pattern(0);
    for (std::size_t i = 0; i < places_.size(); ++i) {
      result += "(" + std::string(pattern_of(placeholders_[places_[i]])) + ")" + literal_pattern(i + 1);
    }
    return result;
  }
  /// By group of the pattern: the index of its placeholder. Groups of one placeholder must hold one text.
  const std::vector<std::size_t>& groups() const { return places_; }

 private:
  std::string literal_pattern(std::size_t literal) const;

  std::string text_;
  std::vector<std::string> literals_{""};  ///< Around the places: one more than those.
  std::vector<std::size_t> places_;        ///< Index into placeholders_.
  std::vector<std::string> placeholders_;
};

}  // namespace shard
