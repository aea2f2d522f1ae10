#include "libshard/map/documents/variables.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <re2/re2.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "libshard/catalog/selection/pattern_sets.h"
#include "libshard/core/json_builder.h"
#include "libshard/core/parse_number.h"
#include "libshard/map/documents/document_rules.h"
#include "libshard/map/documents/wrong.h"

namespace shard {

namespace {

constexpr std::size_t kMaxWord = 1024;  ///< A text from a file name, which many patterns may contain.
constexpr int kConfigDepth = 64;
constexpr std::string_view kConfig = "config.json#", kArguments = "args.", kStored = "stored#", kLogical = "logical#";

/// Reads a number if the text is one, otherwise a word.
MapValue read_stated(const std::string& text) {
  const std::optional<std::int64_t> number = parse_number(text);
  return number ? MapValue(*number) : MapValue(text);
}

/// Replaces NaN, Infinity and -Infinity by null. Python writes them, but JSON has no such numbers.
std::string without_python_numbers(std::string_view text) {
  std::string plain;
  plain.reserve(text.size());
  bool in_string = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const auto begins = [&](std::string_view word) { return !in_string && text.substr(i).starts_with(word); };
    const std::size_t skipped = begins("NaN") ? 3 : begins("Infinity") ? 8 : begins("-Infinity") ? 9 : 0;
    if (skipped > 0) {
      plain += "null";
      i += skipped - 1;
      continue;
    }
    if (text[i] == '"') in_string = !in_string;
    plain += text[i];
    if (in_string && text[i] == '\\' && i + 1 < text.size()) plain += text[++i];
  }
  return plain;
}

nlohmann::json parse_config(const MapInputs& inputs) {
  if (inputs.config.empty()) return {};
  const auto refused = [&](const std::string& what) {
    return wrong(fmt::format("cannot use {}: {}", inputs.config_file, what)).in_file(inputs.config_file);
  };
  const JsonLimits limits{.depth = kConfigDepth, .repeats_keys = true};
  return parse_json<nlohmann::json>(without_python_numbers(inputs.config), limits, refused);
}

/// The value at a JSON pointer, if it is a word, a boolean (as 0 or 1) or an integer of 63 bits. Sets `is_unusable` if
/// it is anything else but null.
std::optional<MapValue> find_in_config(const nlohmann::json& config, const std::string& pointer,
                                       bool& is_unusable) try {
  const nlohmann::json::json_pointer at(pointer);
  if (!config.contains(at)) return std::nullopt;
  const nlohmann::json& value = config.at(at);
  if (value.is_string()) return value.get<std::string>();
  if (value.is_boolean()) return value.get<bool>() ? 1 : 0;
  const bool fits = value.is_number_integer() &&
                    (!value.is_number_unsigned() || value.get<std::uint64_t>() <= std::uint64_t{INT64_MAX});
  if (fits) return value.get<std::int64_t>();
  is_unusable = !value.is_null();
  return std::nullopt;
} catch (const nlohmann::json::exception&) {
  return std::nullopt;
}

/// The patterns of one prefix from which a document's variables come, and the texts that they match in names.
class NamePatterns {
 public:
  NamePatterns(const Catalog* catalog, const MapDocument& document, std::string_view prefix)
      : catalog_(catalog), document_(document), prefix_(prefix) {}

  /// The text of the pattern's group in a name that it matches. If there are several, the smallest (numbers before
  /// words). Without a group: 1. The first call searches for all patterns together.
  std::optional<MapValue> find(std::string_view pattern) {
    if (catalog_ == nullptr) return std::nullopt;
    if (patterns_.empty()) look();
    const auto found = std::ranges::find(patterns_, pattern, &Pattern::text);
    if (found->too_long != nullptr) {
      throw wrong("the map takes a word from a name that is too long").of_tensor(found->too_long->name);
    }
    return found->least;
  }

 private:
  struct Pattern {
    std::string_view text;
    std::unique_ptr<RE2> compiled;
    std::optional<MapValue> least{};
    const Tensor* too_long = nullptr;  ///< A tensor whose name has a longer word.
  };

  /// Matches all patterns of the prefix against all names in one pass.
  void look() {
    PatternSets sets(RE2::ANCHOR_BOTH);
    for (const MapVariable& variable : document_.vars) {
      for (const std::string_view from : variable.from) {
        if (!from.starts_with(prefix_)) continue;
        const std::string_view text = from.substr(prefix_.size());
        auto compiled = sets.add(patterns_.size(), std::string(text));
        if (compiled == nullptr) throw too_large_patterns();
        patterns_.push_back({text, std::move(compiled)});
      }
    }
    if (!sets.compile()) throw too_large_patterns();
    const MatchTime time;
    for (const Tensor& tensor : catalog_->tensors) {
      if (tensor.name.size() > MatchTime::kLongestName) continue;
      time(tensor.name, [&] { return take(tensor, sets); });
    }
  }

  bool take(const Tensor& tensor, const PatternSets& sets) {
    std::vector<std::size_t> numbers;
    sets.append_matching(tensor.name, numbers);
    for (const std::size_t number : numbers) {
      Pattern& pattern = patterns_[number];
      const re2::StringPiece name(tensor.name.data(), tensor.name.size());
      std::string text;
      if (pattern.compiled->NumberOfCapturingGroups() == 0) {
        if (!pattern.least && RE2::FullMatch(name, *pattern.compiled)) pattern.least = 1;
      } else if (RE2::FullMatch(name, *pattern.compiled, &text)) {
        if (text.size() > kMaxWord) pattern.too_long = &tensor;
        MapValue value = read_stated(text);
        if (!pattern.least || value < *pattern.least) pattern.least = std::move(value);
      }
    }
    return !numbers.empty();
  }

  const Catalog* catalog_;
  const MapDocument& document_;
  const std::string_view prefix_;
  std::vector<Pattern> patterns_;
};

/// The sources of variables.
struct Sources {
  Sources(const MapDocument& document, const MapInputs& inputs)
      : config(parse_config(inputs)),
        stored(inputs.stored, document, kStored),
        logical(inputs.logical, document, kLogical) {}

  nlohmann::json config;
  NamePatterns stored, logical;
  bool is_unusable = false;  ///< Whether the last value in the config is neither a number nor a word.
};

std::optional<MapValue> find_value(const std::string& from, Sources& sources, const MapInputs& inputs) {
  const auto rest = [&](std::string_view prefix) { return std::string_view(from).substr(prefix.size()); };
  if (from.starts_with(kConfig)) {
    return find_in_config(sources.config, std::string(rest(kConfig)), sources.is_unusable);
  }
  if (from.starts_with(kStored)) return sources.stored.find(rest(kStored));
  if (from.starts_with(kLogical)) return sources.logical.find(rest(kLogical));
  return inputs.argument ? inputs.argument(rest(kArguments)) : std::nullopt;
}

constexpr const char* kUnusable = "; the value in config.json is neither a whole number nor a word";

/// The place that a variable's value comes from, for a message; empty if only the user can state it.
std::string origin_of(const MapVariable& variable) {
  std::string origin;
  if (!variable.from.empty()) origin = fmt::format("read from {}", fmt::join(variable.from, ", "));
  for (const Expression& value : variable.values) {
    origin += fmt::format("{}computed as '{}'", origin.empty() ? "" : ", or ", value.text());
  }
  return origin;
}

}  // namespace

std::string text_of(const MapValue& value) {
  const auto* number = std::get_if<std::int64_t>(&value);
  return number != nullptr ? std::to_string(*number) : std::get<std::string>(value);
}

MapVariables::MapVariables(const MapDocument& document, const MapInputs& inputs) {
  Sources sources(document, inputs);
  if (inputs.ranks) values_.emplace_back("ranks", *inputs.ranks);
  for (const auto& [name, value] : inputs.given) {
    if (std::ranges::find(document.vars, name, &MapVariable::name) == document.vars.end()) {
      std::vector<std::string_view> names;
      for (const MapVariable& variable : document.vars) names.push_back(variable.name);
      throw wrong(fmt::format("the map has no variable '{}'", name))
          .expected(fmt::format("{}", fmt::join(names, ", ")))
          .found(name);
    }
  }
  for (const MapVariable& variable : document.vars) {
    std::optional<MapValue> found;
    sources.is_unusable = false;
    for (const std::string& from : variable.from) {
      // The first source that has a value counts.
      if (!found && !sources.is_unusable) found = find_value(from, sources, inputs);
    }
    const auto stated = std::ranges::find(inputs.given, variable.name, [](const auto& each) { return each.first; });
    if (stated != inputs.given.end()) {
      // A value from the user replaces a missing one, but must not contradict the source.
      const MapValue value = read_stated(stated->second);
      if (found && *found != value) {
        throw wrong(fmt::format("'{}' was set to '{}', but the checkpoint or its config.json has '{}'", variable.name,
                                text_of(value), text_of(*found)))
            .expected(text_of(*found))
            .found(text_of(value));
      }
      found = value;
    }
    sources_.emplace_back(variable.name, origin_of(variable) + (sources.is_unusable ? kUnusable : ""));
    if (!found && sources.is_unusable) continue;  // The default would contradict the config.
    for (const Expression& value : variable.values) {
      if (found) break;
      // If a variable of the expression is missing, the error is reported only when this one is used.
      if (const std::optional<std::int64_t> known = evaluate_known(value)) found = *known;
    }
    if (!found && variable.word) found = *variable.word;
    if (found) values_.emplace_back(variable.name, *found);
  }
}

const MapValue* MapVariables::find(std::string_view name) const {
  const auto found = std::ranges::find(values_, name, [](const auto& each) -> std::string_view { return each.first; });
  return found == values_.end() ? nullptr : &found->second;
}

std::int64_t MapVariables::number(std::string_view name) const {
  const MapValue* const value = find(name);
  if (value == nullptr) throw missing(name);
  if (const auto* number = std::get_if<std::int64_t>(value)) return *number;
  throw wrong(fmt::format("the map's variable '{}' is not a number", name)).found(std::get<std::string>(*value));
}

Error MapVariables::missing(std::string_view name) const {
  Error error(ErrorCode::kInvalidArgument, fmt::format("the map needs a value for '{}'", name));
  const auto source =
      std::ranges::find(sources_, name, [](const auto& each) -> std::string_view { return each.first; });
  if (source == sources_.end()) return error.because("the document's 'vars' do not define it");
  if (!source->second.empty()) error.because(fmt::format("it is normally {}", source->second));
  return error.suggest(Remedy::kNameReference).suggest(Remedy::kStateVariable, name);
}

/// A variable without a value does not exclude a rule. ModelMap::decide reports it if the rule is needed.
bool MapVariables::allow(const std::vector<MapCondition>& conditions) const {
  return std::ranges::all_of(conditions, [this](const MapCondition& condition) {
    const MapValue* const value = find(condition.first);
    return value == nullptr || std::ranges::find(condition.second, text_of(*value)) != condition.second.end();
  });
}

std::int64_t MapVariables::evaluate(const Expression& expression) const {
  return expression.evaluate([this](std::string_view name) { return number(name); });
}

double MapVariables::evaluate_real(const Expression& expression) const {
  return expression.evaluate_real([this](std::string_view name) { return number(name); });
}

std::optional<std::int64_t> MapVariables::evaluate_known(const Expression& expression) const {
  try {
    return evaluate(expression);
  } catch (const Error&) {
    return std::nullopt;
  }
}

std::int64_t MapVariables::evaluate(const Expression& expression, std::int64_t n) const {
  return expression.evaluate([&](std::string_view name) { return name == "n" ? n : number(name); });
}

}  // namespace shard
