/// \file
/// The numbers and words of a map document: where they are looked up, and their values.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "libshard/catalog/catalog.h"
#include "libshard/core/error.h"
#include "libshard/map/documents/document.h"

namespace shard {

using MapValue = std::variant<std::int64_t, std::string>;
std::string text_of(const MapValue& value);

/// Where variables may come from.
struct MapInputs {
  std::vector<std::pair<std::string, std::string>> given{};  ///< Names and values that the user states.
  std::string config;                                        ///< The text of a config.json; may be empty.
  std::string config_file;                                   ///< Its path, for messages.
  /// The checkpoint's own argument of that name; nothing where it has none. May be empty.
  std::function<std::optional<MapValue>(std::string_view name)> argument{};
  std::optional<std::int64_t> ranks{};  ///< The variable `ranks`.
  const Catalog* stored = nullptr;      ///< Of a map that is undone: what it is undone on.
  const Catalog* logical = nullptr;     ///< Of a map that is made: what it is made of.
};

/// Variables by name. Those without a value are missed when they are asked for, not before: a rule that matches nothing
/// needs none. Pure.
class MapVariables {
 public:
  MapVariables() = default;
  /// Looks up each variable: the first of its `from` that is there, else what the user states, else the first of its
  /// expressions that can be evaluated, else its word. Cost: patterns of names times tensors.
  /// \throws Error kInvalidArgument  config.json is not JSON; a name gives a word of more than 1024 bytes; what the
  /// user states contradicts what was found, or names
  ///   no variable; an expression that cannot be evaluated.
  MapVariables(const MapDocument& document, const MapInputs& inputs);

  /// Null where it has no value.
  const MapValue* find(std::string_view name) const;
  /// \throws Error kInvalidArgument  it has no value, or is a word
  std::int64_t number(std::string_view name) const;
  /// Whether no known variable has another value than the conditions want.
  bool allow(const std::vector<MapCondition>& conditions) const;
  /// The error that says that a variable is missing.
  Error missing(std::string_view name) const;
  /// `expression` with these variables.
  std::int64_t evaluate(const Expression& expression) const;
  /// The same; nothing where it cannot be evaluated.
  std::optional<std::int64_t> evaluate_known(const Expression& expression) const;
  /// With `n` too.
  std::int64_t evaluate(const Expression& expression, std::int64_t n) const;
  /// Gives one more name a number: the size of an axis.
  void add(std::string name, std::int64_t number) { values_.emplace_back(std::move(name), number); }

 private:
  std::vector<std::pair<std::string, MapValue>> values_;
  std::vector<std::pair<std::string, std::string>> sources_;  ///< Names, and where each would have come from.
};

}  // namespace shard
