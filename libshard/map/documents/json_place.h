/// \file JsonPlace: a value of a JSON document together with its path, read strictly. Inside libshard/map only.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "libshard/core/error.h"
#include "libshard/map/documents/expression.h"

namespace shard {

/// Every function that reads the value throws Error kInvalidArgument, with the path and the found type, if the value
/// has a different type. Ownership: the document must outlive it.
class JsonPlace {
 public:
  using Json = nlohmann::ordered_json;

  JsonPlace(const Json& value, std::string where) : value_(&value), where_(std::move(where)) {}

  /// The path of the value in the document, for messages: "rules[2].pad".
  const std::string& where() const { return where_; }
  const Json& json() const { return *value_; }

  /// An error of the document, without a place.
  static Error wrong(const std::string& message) {
    return Error(ErrorCode::kInvalidArgument, "cannot use the layout document: " + message);
  }
  /// The error for a value that is not of this kind: "an object", "a list of widths".
  Error not_a(std::string_view kind) const {
    return wrong(fmt::format("{} is not {}", where_, kind)).found(value_->type_name());
  }

  /// Checks the keys of an object. \throws Error kInvalidArgument  not an object, or a key that is not in `known`
  void check_keys(std::initializer_list<std::string_view> known) const {
    if (const std::optional<std::string> key = other_key(known)) {
      throw wrong(fmt::format("{} has an unknown key '{}'", where_, *key))
          .expected(fmt::format("{}", fmt::join(known, ", ")))
          .found(*key);
    }
  }
  /// The first key that is not one of these. \throws Error kInvalidArgument  not an object
  std::optional<std::string> other_key(std::initializer_list<std::string_view> known) const {
    if (!value_->is_object()) throw not_a("an object");
    for (const auto& [key, value] : value_->items()) {
      if (std::ranges::find(known, std::string_view(key)) == known.end()) return key;
    }
    return std::nullopt;
  }

  /// The value under a key, or nothing.
  std::optional<JsonPlace> find(const char* key) const {
    const auto found = value_->find(key);
    if (found == value_->end()) return std::nullopt;
    return JsonPlace(*found, where_ + "." + key);
  }
  /// The value under a key that must exist.
  JsonPlace at(const char* key) const {
    if (auto found = find(key)) return *found;
    throw wrong(fmt::format("{} has no key '{}'", where_, key));
  }

  std::string text() const {
    if (!value_->is_string()) throw not_a("a string");
    return value_->get<std::string>();
  }
  /// The text under a key; empty without it.
  std::string text_of(const char* key) const {
    const auto found = find(key);
    return found ? found->text() : std::string();
  }
  bool boolean() const {
    if (!value_->is_boolean()) throw not_a("true or false");
    return value_->get<bool>();
  }
  std::int64_t integer() const {
    const bool fits = value_->is_number_integer() &&
                      (!value_->is_number_unsigned() || value_->get<std::uint64_t>() <= std::uint64_t{INT64_MAX});
    if (!fits) throw not_a("an integer");
    return value_->get<std::int64_t>();
  }
  /// The result of `parse`, whose errors become errors of the document with the path.
  template <class Parse>
  auto parsed(const Parse& parse) const {
    try {
      return parse();
    } catch (const Error& error) {
      throw wrong(fmt::format("{}: {}", where_, error.what())).because(error.why());
    }
  }
  /// Reads an integer, or a text that is an expression.
  Expression expression() const {
    if (!value_->is_string()) return Expression(integer());
    return parsed([&] { return Expression::parse(value_->get<std::string>()); });
  }
  /// Reads a number, or a text that is an expression of real numbers.
  Expression real_expression() const {
    if (value_->is_number()) return Expression::of_real(value_->get<double>());
    if (!value_->is_string()) throw not_a("a number or an expression");
    return parsed([&] { return Expression::parse_real(value_->get<std::string>()); });
  }
  /// Reads one of these words. \returns its index.
  std::size_t word(std::initializer_list<std::string_view> words) const {
    const std::string given = text();
    const auto* const found = std::ranges::find(words, std::string_view(given));
    if (found != words.end()) return static_cast<std::size_t>(found - words.begin());
    throw wrong(fmt::format("{} is not one of the allowed words", where_))
        .expected(fmt::format("{}", fmt::join(words, ", ")))
        .found(given);
  }

  /// The items of a list.
  std::vector<JsonPlace> items() const {
    if (!value_->is_array()) throw not_a("a list");
    std::vector<JsonPlace> places;
    places.reserve(value_->size());
    for (std::size_t i = 0; i < value_->size(); ++i)
      places.emplace_back((*value_)[i], fmt::format("{}[{}]", where_, i));
    return places;
  }
  /// The items of a list, or the value itself as the only item.
  std::vector<JsonPlace> items_or_self() const { return value_->is_array() ? items() : std::vector{*this}; }
  /// Keys and values of an object, in the document's order.
  std::vector<std::pair<std::string, JsonPlace>> members() const {
    if (!value_->is_object()) throw not_a("an object");
    std::vector<std::pair<std::string, JsonPlace>> places;
    for (const auto& [key, value] : value_->items()) places.emplace_back(key, JsonPlace(value, where_ + "." + key));
    return places;
  }
  /// The items of a list, each as an expression.
  std::vector<Expression> expressions() const {
    std::vector<Expression> all;
    for (const JsonPlace& item : items()) all.push_back(item.expression());
    return all;
  }

 private:
  const Json* value_;
  std::string where_;
};

}  // namespace shard
