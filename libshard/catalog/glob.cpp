#include "libshard/catalog/glob.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

namespace shard {

namespace {

/// One step of a glob at `at`: a character, a class, or a star. \returns where the next begins.
struct Step {
  enum Kind : std::uint8_t { kOne, kStar, kDoubleStar } kind;
  std::string_view text;  ///< kOne: the character, "?", or the class with its brackets.
};

/// Past the ']' of the class that begins at `at`, or `at` when it has none: then '[' is a character.
std::size_t class_end(std::string_view glob, std::size_t at) {
  std::size_t first = at + 1;
  if (first < glob.size() && (glob[first] == '!' || glob[first] == '^')) ++first;
  const std::size_t close = glob.find(']', first + 1);  // A ']' that comes first is a member.
  return close == std::string_view::npos ? at : close + 1;
}

Step step_at(std::string_view glob, std::size_t at) {
  if (glob[at] == '*') {
    const std::size_t after = glob.find_first_not_of('*', at);
    const std::size_t stars = (after == std::string_view::npos ? glob.size() : after) - at;
    return {stars > 1 ? Step::kDoubleStar : Step::kStar, glob.substr(at, stars)};
  }
  const std::size_t end = glob[at] == '[' ? class_end(glob, at) : at;
  return {Step::kOne, glob.substr(at, end > at ? end - at : 1)};
}

bool is_in_class(std::string_view members, char c) {
  const bool negated = members[1] == '!' || members[1] == '^';
  if (negated && c == '.') return false;  // Like '?': what is not written out stays inside a part.
  const auto byte = [](char each) { return static_cast<unsigned char>(each); };
  for (std::size_t i = negated ? 2 : 1; i + 1 < members.size(); ++i) {
    const bool is_range = i + 3 < members.size() && members[i + 1] == '-';
    const char last = is_range ? members[i + 2] : members[i];
    if (byte(members[i]) <= byte(c) && byte(c) <= byte(last)) return !negated;
    if (is_range) i += 2;
  }
  return negated;
}

bool matches_one(std::string_view one, char c) {
  if (one == "?") return c != '.';
  return one.size() > 1 ? is_in_class(one, c) : one[0] == c;
}

/// Which positions of the pattern the name read so far can have led to: as many as steps, all moved on by each
/// character, so that no pattern takes more than |glob| * |name|.
class Positions {
 public:
  explicit Positions(std::string_view glob) {
    for (std::size_t at = 0; at < glob.size(); at += steps_.back().text.size()) steps_.push_back(step_at(glob, at));
    active_.resize(steps_.size() + 1);
    active_[0] = true;
    skip_stars();
  }

  bool advance(char c) {
    bool any = false;
    for (std::size_t i = active_.size(); i-- > 0;) {
      const bool from_before =
          i > 0 && active_[i - 1] && steps_[i - 1].kind == Step::kOne && matches_one(steps_[i - 1].text, c);
      const bool stays = i < steps_.size() && active_[i] &&
                         (steps_[i].kind == Step::kDoubleStar || (steps_[i].kind == Step::kStar && c != '.'));
      active_[i] = from_before || stays;
      any = any || active_[i];
    }
    skip_stars();
    return any;
  }

  bool at_end() const { return active_.back(); }

 private:
  /// A star may match nothing.
  void skip_stars() {
    for (std::size_t i = 0; i < steps_.size(); ++i) {
      if (active_[i] && steps_[i].kind != Step::kOne) active_[i + 1] = true;
    }
  }

  std::vector<Step> steps_;
  std::vector<char> active_;
};

}  // namespace

bool glob_match(std::string_view glob, std::string_view name) {
  const std::size_t literal = std::min(glob.find_first_of("*?["), glob.size());
  if (name.substr(0, literal) != glob.substr(0, literal)) return false;
  glob.remove_prefix(literal);
  name.remove_prefix(literal);
  if (glob.empty() || glob == "**") return glob.empty() ? name.empty() : true;
  Positions positions(glob);
  for (const char c : name) {
    if (!positions.advance(c)) return false;
  }
  return positions.at_end();
}

}  // namespace shard
