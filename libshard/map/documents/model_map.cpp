#include "libshard/map/documents/model_map.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <re2/re2.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <utility>

#include "libshard/catalog/layouts/placement.h"
#include "libshard/catalog/selection/pattern_sets.h"
#include "libshard/core/box.h"
#include "libshard/core/error.h"
#include "libshard/core/parse_number.h"
#include "libshard/map/documents/document_rules.h"
#include "libshard/map/documents/resolve.h"
#include "libshard/map/documents/wrong.h"

namespace shard {

namespace {

/// Parses at most 18 decimal digits.
std::optional<std::int64_t> number_of(const std::string& text) {
  constexpr std::size_t kMaxDigits = 18;
  return text.size() <= kMaxDigits ? parse_number(text) : std::nullopt;
}

}  // namespace

/// The templates and patterns of one side in sets, so that one pass over a name matches all of them.
class ModelMap::Names {
 public:
  Names(const MapDocument& document, bool stored) {
    for (std::size_t rule = 0; rule < document.rules.size(); ++rule) {
      const MapRule& each = document.rules[rule];
      // Tensors in flat buffers have no stored names of their own.
      if (stored && each.family) continue;
      if (!each.match.empty()) {
        add(rule, 0, nullptr, each.match, each.where);
      } else if (stored) {
        std::set<std::string> added;  // Different templates may give the same names once variables are known.
        const auto add_once = [&](const NameTemplate& names) {
          const std::string pattern = pattern_of(names, document);
          if (added.insert(pattern).second) add(rule, 0, &names, pattern, each.where);
        };
        add_once(each.stored);
        for (const NameTemplate& other : each.others) add_once(other);
      } else {
        for (std::size_t segment = 0; segment < each.logical.size(); ++segment) {
          add(rule, segment, &each.logical[segment], pattern_of(each.logical[segment], document), each.where);
        }
      }
    }
    if (!sets_.compile()) throw too_large_patterns();
  }

  /// All matches, in the order of rules and segments.
  std::vector<NameMatch> find(std::string_view name) const {
    if (name.size() > MatchTime::kLongestName) return {};
    return time_(name, [&] { return matches_of(name); });
  }

 private:
  std::vector<NameMatch> matches_of(std::string_view name) const {
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

  struct Pattern {
    std::size_t rule, segment;
    const NameTemplate* names;  ///< Null: the entry is a pattern of whole names.
    std::unique_ptr<RE2> compiled;
  };

  static std::string pattern_of(const NameTemplate& names, const MapDocument& document) {
    return names.pattern([&](const std::string& placeholder) -> std::string {
      const auto type = std::ranges::find(document.types, placeholder, [](const auto& each) { return each.first; });
      return type == document.types.end() ? "[0-9]+" : "(?:" + type->second + ")";
    });
  }

  void add(std::size_t rule, std::size_t segment, const NameTemplate* names, const std::string& pattern,
           const std::string& where) {
    auto compiled = sets_.add(patterns_.size(), pattern);
    if (compiled == nullptr) throw too_large_patterns();
    if (!compiled->ok()) throw wrong(where + " is not a regular expression").because(compiled->error());
    patterns_.push_back({rule, segment, names, std::move(compiled)});
  }

  /// Sets the values of the placeholders in a name. \returns false if the name does not match, or if a placeholder that
  /// occurs several times has different texts.
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
  MatchTime time_;
};

ModelMap::ModelMap(MapDocument document, MapVariables variables)
    : document_(std::move(document)), variables_(std::move(variables)) {
  resolve(document_, variables_);
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
  for (const MapRule& rule : document_.rules) check_on(rule);
  for (const MapIndex& index : document_.index) {
    if (!index.begin) continue;
    const std::int64_t begin = variables_.evaluate(*index.begin);
    const std::int64_t count = variables_.evaluate(*index.count);
    if (begin < 0 || count < 0 || count > INT64_MAX - begin)
      throw wrong(fmt::format("cannot use the map's index '{}': {} numbers from {} on", index.name, count, begin));
    ranges_.push_back({index.name, begin, begin + count});
  }
  stored_ = std::make_unique<Names>(document_, true);
  logical_ = std::make_unique<Names>(document_, false);
}

void ModelMap::check_on(const MapRule& rule) const {
  for (const MapOn& on : rule.on) {
    const std::int64_t size = mesh_[on.axis];
    const auto is_there = [&](std::int64_t coordinate) { return coordinate >= -size && coordinate < size; };
    if (std::ranges::any_of(on.coordinates, is_there) || !counts(rule)) continue;
    throw wrong(
        fmt::format("`on` of {} names no coordinate that the axis '{}' has", rule.where, document_.mesh[on.axis].name))
        .expected(fmt::format("{} to {}", -size, size - 1))
        .found(fmt::format("{}", fmt::join(on.coordinates, ", ")));
  }
}

ModelMap::~ModelMap() = default;
ModelMap::ModelMap(ModelMap&& other) noexcept = default;

std::vector<std::int64_t> ModelMap::coordinate_of(std::int64_t rank) const {
  std::vector<std::int64_t> coordinate(mesh_.size());
  set_index<std::int64_t>(coordinate, mesh_, rank);
  return coordinate;
}

MapFactors ModelMap::factors_of(const MapRule& rule, std::string_view tensor, DType dtype) const {
  if (!rule.arithmetic) return {};
  const MapArithmetic& arithmetic = *rule.arithmetic;
  const double scale = variables_.evaluate_real(arithmetic.scale), add = variables_.evaluate_real(arithmetic.add);
  MapFactors factors{static_cast<float>(scale), static_cast<float>(add)};
  if (arithmetic.unscale) {
    const double unscale = variables_.evaluate_real(*arithmetic.unscale);
    factors.unscale = static_cast<float>(unscale);
    if (!(std::abs(scale * unscale - 1) < 1e-6) || !std::isnormal(factors.unscale)) {
      throw wrong(fmt::format("cannot map '{}': in {}, unscale is not the inverse of scale", tensor, rule.where))
          .of_tensor(tensor)
          .expected(fmt::format("{}", 1 / scale))
          .found(fmt::format("{}", unscale));
    }
  }
  if (arithmetic.values == MapValues::kGradients) factors = {static_cast<float>(1 / scale), 0};
  if (arithmetic.values == MapValues::kSquaredGradients) factors = {static_cast<float>(1 / scale / scale), 0};
  if (!std::isnormal(factors.scale) || !std::isfinite(factors.add)) {
    throw wrong(fmt::format("cannot map '{}': {} cannot be used in float32", tensor, rule.where))
        .of_tensor(tensor)
        .expected("a scale that is not 0, and finite numbers")
        .found(fmt::format("scale {}, add {}", scale, add));
  }
  if (!factors.changes()) return {};
  if (dtype == DType::kFloat32 || dtype == DType::kFloat16 || dtype == DType::kBfloat16) return factors;
  throw Error(ErrorCode::kUnsupported, fmt::format("cannot map '{}': {} computes its values", tensor, rule.where))
      .of_tensor(tensor)
      .expected("float32, float16 or bfloat16")
      .found(dtype_name(dtype));
}

/// A name with a number outside an index's range is not a name of the rule. A different rule may match it.
bool ModelMap::in_range(const NameTemplate& names, const NameMatch& match) const {
  return std::ranges::all_of(ranges_, [&](const Range& range) {
    const auto found = std::ranges::find(names.placeholders(), range.index);
    if (found == names.placeholders().end()) return true;
    const auto number = number_of(match.values[static_cast<std::size_t>(found - names.placeholders().begin())]);
    return number && *number >= range.begin && *number < range.end;
  });
}

bool ModelMap::has_companion(const NameMatch& match, const std::function<bool(const std::string&)>& is_there) const {
  const MapRule& found = rule(match.rule);
  if (!found.beside) return true;
  const std::vector<std::string>& names = found.logical[match.segment].placeholders();
  std::vector<std::string_view> values;
  for (const std::string& name : found.beside->placeholders()) {
    values.emplace_back(match.values[static_cast<std::size_t>(std::ranges::find(names, name) - names.begin())]);
  }
  return is_there(found.beside->fill(values));
}

/// Selects the rules that apply. At most one template may match, in addition to those that only repeat a tensor. If
/// none does, the first pattern that matches applies.
template <class Repeats>
std::vector<NameMatch> ModelMap::decide(std::string_view name, std::vector<NameMatch> matches,
                                        const Repeats& repeats) const {
  for (const NameMatch& match : matches) {
    for (const auto& [variable, values] : rule(match.rule).when) {
      if (variables_.find(variable) == nullptr) throw variables_.missing(variable).of_tensor(name);
    }
  }
  std::erase_if(matches, [&](const NameMatch& match) { return !counts(rule(match.rule)); });
  const auto is_pattern = [&](const NameMatch& match) { return !rule(match.rule).match.empty(); };
  std::vector<const MapRule*> own;
  for (const NameMatch& match : matches) {
    if (!is_pattern(match) && !repeats(rule(match.rule))) own.push_back(&rule(match.rule));
  }
  if (own.size() > 1) {
    throw wrong(fmt::format("cannot map '{}': two rules match it", name))
        .of_tensor(name)
        .because(fmt::format("namely {} and {}", own[0]->where, own[1]->where));
  }
  bool is_decided = !own.empty();
  std::erase_if(matches, [&](const NameMatch& match) { return is_pattern(match) && std::exchange(is_decided, true); });
  return matches;
}

std::optional<NameMatch> ModelMap::match_stored(std::string_view name) const {
  std::vector<NameMatch> matches = stored_->find(name);
  std::erase_if(matches, [&](const NameMatch& match) { return !in_range(rule(match.rule).stored, match); });
  matches = decide(name, std::move(matches), [](const MapRule&) { return false; });
  if (matches.empty()) return std::nullopt;
  return std::move(matches.front());
}

std::vector<NameMatch> ModelMap::match_logical(std::string_view name,
                                               const std::function<bool(const std::string&)>& is_there) const {
  std::vector<NameMatch> matches = logical_->find(name);
  std::erase_if(matches, [&](const NameMatch& match) {
    const MapRule& found = rule(match.rule);
    return found.match.empty() && (!in_range(found.logical[match.segment], match) || !has_companion(match, is_there));
  });
  return decide(name, std::move(matches), [](const MapRule& each) { return each.is_alias; });
}

}  // namespace shard
