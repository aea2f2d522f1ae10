#include "libshard/map/model_map.h"

#include <fmt/format.h>
#include <re2/re2.h>

#include <algorithm>
#include <utility>

#include "libshard/catalog/pattern_sets.h"
#include "libshard/catalog/placement.h"
#include "libshard/core/error.h"
#include "libshard/core/index_walk.h"
#include "libshard/map/wrong.h"

namespace shard {

namespace {}  // namespace

/// The templates and patterns of one side in sets, so that a name is passed over once for all of them.
class ModelMap::Names {
 public:
  Names(const MapDocument& document, bool stored) {
    for (std::size_t rule = 0; rule < document.rules.size(); ++rule) {
      const MapRule& each = document.rules[rule];
      if (!each.match.empty()) {
        add(rule, 0, nullptr, each.match, each.where);
      } else if (stored) {
        add(rule, 0, &each.stored, pattern_of(each.stored, document), each.where);
      } else {
        for (std::size_t segment = 0; segment < each.logical.size(); ++segment) {
          add(rule, segment, &each.logical[segment], pattern_of(each.logical[segment], document), each.where);
        }
      }
    }
    if (!sets_.compile()) throw too_large();
  }

  /// In the order of rules and segments.
  std::vector<NameMatch> find(std::string_view name) const {
    std::vector<std::size_t> numbers;
    sets_.append_matching(name, numbers);
    std::ranges::sort(numbers);
    std::vector<NameMatch> matches;
    for (const std::size_t number : numbers) {
      const Pattern& pattern = patterns_[number];
      NameMatch match{pattern.rule, pattern.segment, {}};
      if (pattern.names == nullptr) {
        if (!RE2::FullMatch(name, *pattern.compiled)) continue;
        match.values.emplace_back(name);
      } else if (!take_values(name, pattern, match.values)) {
        continue;
      }
      matches.push_back(std::move(match));
    }
    return matches;
  }

 private:
  struct Pattern {
    std::size_t rule, segment;
    const NameTemplate* names;  ///< Null: a pattern of whole names.
    std::unique_ptr<RE2> compiled;
  };

  static Error too_large() { return wrong("cannot use the layout document: the patterns of its rules are too large"); }

  static std::string pattern_of(const NameTemplate& names, const MapDocument& document) {
    return names.pattern([&](const std::string& placeholder) -> std::string {
      const auto type = std::ranges::find(document.types, placeholder, [](const auto& each) { return each.first; });
      return type == document.types.end() ? "[0-9]+" : "(?:" + type->second + ")";
    });
  }

  void add(std::size_t rule, std::size_t segment, const NameTemplate* names, const std::string& pattern,
           const std::string& where) {
    auto compiled = std::make_unique<RE2>(pattern, quiet_patterns());
    if (!compiled->ok()) throw wrong(where + " does not make a regular expression").because(compiled->error());
    const bool has_groups = names != nullptr && compiled->NumberOfCapturingGroups() != std::ssize(names->groups());
    if (has_groups) throw wrong(where + ": a type has a group; write (?:...)");
    if (!sets_.add(patterns_.size(), pattern, compiled->ProgramSize())) throw too_large();
    patterns_.push_back({rule, segment, names, std::move(compiled)});
  }

  static bool take_values(std::string_view name, const Pattern& pattern, std::vector<std::string>& values) {
    const std::vector<std::size_t>& groups = pattern.names->groups();
    std::vector<re2::StringPiece> found(groups.size() + 1);
    if (!pattern.compiled->Match(name, 0, name.size(), RE2::ANCHOR_BOTH, found.data(),
                                 static_cast<int>(found.size()))) {
      return false;
    }
    values.resize(pattern.names->placeholders().size());
    std::vector<bool> is_set(values.size());
    for (std::size_t i = 0; i < groups.size(); ++i) {
      const std::string_view text(found[i + 1].data(), found[i + 1].size());
      if (is_set[groups[i]] && values[groups[i]] != text) return false;
      values[groups[i]] = text;
      is_set[groups[i]] = true;
    }
    return true;
  }

  PatternSets sets_{RE2::ANCHOR_BOTH};
  std::vector<Pattern> patterns_;
};

ModelMap::ModelMap(MapDocument document, MapVariables variables)
    : document_(std::move(document)), variables_(std::move(variables)) {
  for (const MapMeshAxis& axis : document_.mesh) {
    const std::int64_t size = variables_.evaluate(axis.size);
    if (size < 1 || size > kMaxRanks / ranks_) {
      throw wrong(fmt::format("cannot use the map's mesh: axis '{}' is not a size", axis.name))
          .expected(fmt::format("at least 1, and at most {} ranks in all", kMaxRanks))
          .found(size);
    }
    mesh_.push_back(size);
    variables_.add(axis.name, size);
    ranks_ *= size;
  }
  stored_ = std::make_unique<Names>(document_, true);
  logical_ = std::make_unique<Names>(document_, false);
}

ModelMap::~ModelMap() = default;
ModelMap::ModelMap(ModelMap&& other) noexcept = default;

std::vector<std::int64_t> ModelMap::coordinate_of(std::int64_t rank) const {
  std::vector<std::int64_t> coordinate(mesh_.size());
  set_index<std::int64_t>(coordinate, mesh_, rank);
  return coordinate;
}

bool ModelMap::counts(const MapRule& rule) const {
  return std::ranges::all_of(rule.when, [&](const auto& condition) {
    const MapValue* const value = variables_.find(condition.first);
    if (value == nullptr) return true;
    const auto* number = std::get_if<std::int64_t>(value);
    const std::string text = number != nullptr ? std::to_string(*number) : std::get<std::string>(*value);
    return std::ranges::find(condition.second, text) != condition.second.end();
  });
}

/// Of templates one may match; of patterns the first one counts, where no template matches.
std::vector<NameMatch> ModelMap::decide(std::string_view name, std::vector<NameMatch> matches) const {
  for (const NameMatch& match : matches) {
    for (const auto& [variable, values] : rule(match.rule).when) {
      if (variables_.find(variable) == nullptr) throw variables_.missing(variable).of_tensor(name);
    }
  }
  std::erase_if(matches, [&](const NameMatch& match) { return !counts(rule(match.rule)); });
  const auto is_pattern = [&](const NameMatch& match) { return !rule(match.rule).match.empty(); };
  const bool has_templates = !std::ranges::all_of(matches, is_pattern);
  if (!has_templates) {
    if (matches.size() > 1) matches.resize(1);
    return matches;
  }
  std::erase_if(matches, is_pattern);
  std::vector<const NameMatch*> own;
  for (const NameMatch& match : matches) {
    if (!rule(match.rule).is_alias) own.push_back(&match);
  }
  if (own.size() < 2) return matches;
  throw wrong(fmt::format("cannot map '{}': two rules match it", name))
      .of_tensor(name)
      .because(fmt::format("they are {} and {}", rule(own[0]->rule).where, rule(own[1]->rule).where));
}

std::optional<NameMatch> ModelMap::match_stored(std::string_view name) const {
  std::vector<NameMatch> matches = decide(name, stored_->find(name));
  if (matches.empty()) return std::nullopt;
  if (matches.size() > 1) {
    throw wrong(fmt::format("cannot map '{}': two rules match it", name))
        .of_tensor(name)
        .because(fmt::format("they are {} and {}", rule(matches[0].rule).where, rule(matches[1].rule).where));
  }
  return std::move(matches.front());
}

std::vector<NameMatch> ModelMap::match_logical(std::string_view name) const {
  return decide(name, logical_->find(name));
}

}  // namespace shard
