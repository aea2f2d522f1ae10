/// \file MapVariables: the numbers and words of a map document, and the sources of their values.
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

/// The sources of variables.
struct MapInputs {
  std::vector<std::pair<std::string, std::string>> given{};  ///< Names and values that the user passes.
  std::string config;                                        ///< The text of a config.json; may be empty.
  std::string config_file;                                   ///< The path of the config.json, for messages.
  /// Returns the checkpoint's own argument with this name, or nothing if it has none. May be empty.
  std::function<std::optional<MapValue>(std::string_view name)> argument{};
  std::optional<std::int64_t> ranks{};  ///< The value of the variable `ranks`.
  const Catalog* stored = nullptr;      ///< The stored catalog, if the map is undone.
  const Catalog* logical = nullptr;     ///< The logical catalog, if the map is applied.
};

/// Variables by name. A missing value is an error only when it is used, because rules without a match need none. Pure.
class MapVariables {
 public:
  MapVariables() = default;
  /// Looks up each variable: the first existing source in its `from`, or else the user's value, the first of its
  /// expressions that can be evaluated, or its word. Cost: patterns of names times tensors.
  /// \throws Error kInvalidArgument  config.json is not JSON; a name contains a word of more than 1024 bytes; the
  ///   user's value contradicts the one that was found, or names no variable; an expression cannot be evaluated.
  MapVariables(const MapDocument& document, const MapInputs& inputs);

  /// The value, or null if it has none.
  const MapValue* find(std::string_view name) const;
  /// \throws Error kInvalidArgument  it has no value, or is a word
  std::int64_t number(std::string_view name) const;
  /// Whether no known variable contradicts the conditions.
  bool allow(const std::vector<MapCondition>& conditions) const;
  /// The error for a missing variable.
  Error missing(std::string_view name) const;
  /// Evaluates `expression` with these variables.
  std::int64_t evaluate(const Expression& expression) const;
  /// Does the same, but returns nothing if it cannot be evaluated.
  std::optional<std::int64_t> evaluate_known(const Expression& expression) const;
  /// Evaluates an expression of real numbers.
  double evaluate_real(const Expression& expression) const;
  /// Evaluates it with these variables and `n`.
  std::int64_t evaluate(const Expression& expression, std::int64_t n) const;
  /// Adds a variable for the size of an axis.
  void add(std::string name, std::int64_t number) { values_.emplace_back(std::move(name), number); }

 private:
  std::vector<std::pair<std::string, MapValue>> values_;
  std::vector<std::pair<std::string, std::string>> sources_;  ///< Names, and their possible sources.
};

}  // namespace shard
