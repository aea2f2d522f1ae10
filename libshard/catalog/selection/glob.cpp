#include "libshard/catalog/selection/glob.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

#include "libshard/core/ascii.h"
#include "libshard/core/sort_unique.h"
#include "libshard/core/split.h"

namespace shard {

namespace {

/// The index after the ']' of the class that begins at `at`. If there is no ']', returns `at`, and '[' is a literal
/// character.
std::size_t class_end(std::string_view glob, std::size_t at) {
  std::size_t first = at + 1;
  if (first < glob.size() && (glob[first] == '!' || glob[first] == '^')) ++first;
  const std::size_t close = glob.find(']', first + 1);  // A ']' in first position is a member of the class.
  return close == std::string_view::npos ? at : close + 1;
}

bool is_in_class(std::string_view members, char c) {
  if (members == "?") return c != '.';
  const bool negated = members[1] == '!' || members[1] == '^';
  if (negated && c == '.') return false;  // A negated class behaves like '?': it never matches a dot.
  const auto byte = [](char each) { return static_cast<unsigned char>(each); };
  for (std::size_t i = negated ? 2 : 1; i + 1 < members.size(); ++i) {
    const bool is_range = i + 3 < members.size() && members[i + 1] == '-';
    const char last = is_range ? members[i + 2] : members[i];
    if (byte(members[i]) <= byte(c) && byte(c) <= byte(last)) return !negated;
    if (is_range) i += 2;
  }
  return negated;
}

}  // namespace

GlobSet::GlobSet(const std::vector<std::string>& globs) {
  for (const std::string& glob : globs) add(glob);
}

GlobSet::Step GlobSet::step_at(std::string_view glob, std::size_t at) {
  if (glob[at] == '*') {
    const std::size_t stars = std::min(glob.find_first_not_of('*', at), glob.size()) - at;
    return {stars > 1 ? Kind::kDoubleStar : Kind::kStar, glob.substr(at, stars)};
  }
  if (glob[at] == '?') return {Kind::kClass, glob.substr(at, 1)};
  const std::size_t end = glob[at] == '[' ? class_end(glob, at) : at;
  return {end > at ? Kind::kClass : Kind::kCharacter, glob.substr(at, end > at ? end - at : 1)};
}

void GlobSet::add(std::string_view glob) {
  std::uint32_t node = 0;
  for (std::size_t at = 0; at < glob.size();) {
    const Step step = step_at(glob, at);
    at += step.text.size();
    node = child(node, step);
  }
  same_end_.push_back(std::exchange(nodes_[node].last_glob, static_cast<std::uint32_t>(same_end_.size())));
}

std::uint32_t GlobSet::child(std::uint32_t node, const Step& step) {
  for (std::uint32_t each = nodes_[node].first_child; each != kNone; each = nodes_[each].next_sibling) {
    const bool is_star = step.kind == Kind::kStar || step.kind == Kind::kDoubleStar;
    if (nodes_[each].kind == step.kind && (is_star || nodes_[each].text == step.text)) return each;
  }
  const auto made = static_cast<std::uint32_t>(nodes_.size());
  nodes_.push_back({step.kind, std::string(step.text), kNone, nodes_[node].first_child});
  nodes_[node].first_child = made;
  return made;
}

/// A star may match an empty text.
void GlobSet::enter(std::uint32_t node, Nodes& active) const {
  active.push_back(node);
  for (std::uint32_t each = nodes_[node].first_child; each != kNone; each = nodes_[each].next_sibling) {
    if (nodes_[each].kind == Kind::kStar || nodes_[each].kind == Kind::kDoubleStar) enter(each, active);
  }
}

/// The nodes that the whole name can reach. Invariant: `active` has no duplicates.
GlobSet::Nodes GlobSet::reached(std::string_view name) const {
  Nodes active, next;
  enter(0, active);
  for (const char c : name) {
    next.clear();
    for (const std::uint32_t at : active) {
      const Node& node = nodes_[at];
      if (node.kind == Kind::kDoubleStar || (node.kind == Kind::kStar && c != '.')) enter(at, next);
      for (std::uint32_t each = node.first_child; each != kNone; each = nodes_[each].next_sibling) {
        const Node& step = nodes_[each];
        const bool takes = (step.kind == Kind::kCharacter && step.text[0] == c) ||
                           (step.kind == Kind::kClass && is_in_class(step.text, c));
        if (takes) enter(each, next);
      }
    }
    sort_unique(next);
    active.swap(next);
    if (active.empty()) break;
  }
  return active;
}

std::vector<std::size_t> GlobSet::matching(std::string_view name) const {
  std::vector<std::size_t> globs;
  for (const std::uint32_t node : reached(name)) {
    for (std::uint32_t glob = nodes_[node].last_glob; glob != kNone; glob = same_end_[glob]) globs.push_back(glob);
  }
  std::ranges::sort(globs);
  return globs;
}

bool GlobSet::matches(std::string_view name) const {
  return std::ranges::any_of(reached(name), [this](std::uint32_t node) { return nodes_[node].last_glob != kNone; });
}

std::string glob_of_name(std::string_view name) {
  std::string glob;
  for (const char c : name) {
    const bool is_special = c == '*' || c == '?' || c == '[';
    glob += is_special ? std::string{'[', c, ']'} : std::string(1, c);
  }
  return glob;
}

std::string glob_of_layers(std::string_view name) {
  std::vector<std::string> parts;
  for (const std::string_view part : split(name, '.')) {
    const bool is_number = !part.empty() && std::ranges::all_of(part, is_digit);
    parts.push_back(is_number ? "*" : glob_of_name(part));
  }
  return fmt::format("{}", fmt::join(parts, "."));
}

std::string crossing_dots(std::string_view glob) {
  std::string crossing;
  for (std::size_t i = 0; i < glob.size(); ++i) {
    crossing += glob[i];
    if (glob[i] != '*') continue;
    crossing += '*';
    if (i + 1 < glob.size() && glob[i + 1] == '*') ++i;
  }
  return crossing;
}

}  // namespace shard
