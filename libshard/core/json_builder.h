/// \file
/// JsonBuilder and parse_json: values from the events of a parser, with bounds on depth, keys and memory.
///
/// Every JSON document that is held as a tree is read here: layout documents and maps (also those in YAML, whose reader
/// calls the same builder), manifests, integrity.json, notes of lost tensors and config.json. Indexes and headers,
/// which grow with a checkpoint, are read with JsonCursor and are never trees.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "libshard/core/error.h"

namespace shard {

/// Creates the error for a refused document. `what` continues the sentence "cannot use FILE: ".
using JsonRefusal = std::function<Error(const std::string& what)>;

struct JsonLimits {
  int depth = 32;
  std::size_t keys = SIZE_MAX;    ///< The limit for one object.
  std::size_t values = SIZE_MAX;  ///< The limit for the document.
  bool repeats_keys = false;      ///< Use the last of repeated keys, as Python does. Not for ordered_json.
};

/// The handler of nlohmann::json::sax_parse, and of any other parser that has the same events.
///
/// Memory: at most kMostEach times the text's bytes and kFree bytes. Values that would take more are refused before
/// they are built. Cost: linear in the events; keys cost the logarithm of an object's size. `Json` is nlohmann::json or
/// nlohmann::ordered_json.
template <class Json>
class JsonBuilder {
 public:
  /// A long list of single digits needs 16 times its text, a list of honest entries less than 14 times.
  static constexpr std::size_t kMostEach = 15, kFree = 64 << 10;

  JsonBuilder(std::size_t text_bytes, const JsonLimits& limits, JsonRefusal refusal)
      : memory_left_(kFree + kMostEach * text_bytes), limits_(limits), refusal_(std::move(refusal)) {}

  /// The document. \pre the parser has seen its end
  Json take() { return std::move(root_); }

  // Events of the parser. \throws Error  from the refusal: too deep, too many keys or values, a repeated key, too many
  // values for the text
  bool null() { return add(nullptr); }
  bool boolean(bool value) { return add(value); }
  bool number_integer(std::int64_t value) { return add(value); }
  bool number_unsigned(std::uint64_t value) { return add(value); }
  bool number_float(double value, const std::string& /*text*/) { return add(value); }
  bool string(std::string& value);
  bool binary(typename Json::binary_t& /*value*/) { return false; }
  bool start_object(std::size_t elements = SIZE_MAX);
  bool key(std::string& name);
  bool end_object();
  bool start_array(std::size_t elements = SIZE_MAX);
  bool end_array();
  bool parse_error(std::size_t position, const std::string& token, const nlohmann::detail::exception& error);

 private:
  bool add(Json value);
  void open(Json value);
  void hold(std::size_t bytes);

  Json root_;
  std::size_t memory_left_, values_ = 0;
  const JsonLimits limits_;
  const JsonRefusal refusal_;
  std::vector<Json*> open_;                  ///< Open lists and objects, from the outermost one.
  std::vector<std::set<std::string>> keys_;  ///< Keys of open objects, if `Json` is ordered and cannot be searched.
  Json* slot_ = nullptr;                     ///< The value of the last key.
};

/// \throws Error  from `refusal`: not JSON, or beyond the limits. Cost: that of JsonBuilder.
template <class Json>
Json parse_json(std::string_view text, const JsonLimits& limits, const JsonRefusal& refusal);

extern template class JsonBuilder<nlohmann::json>;
extern template class JsonBuilder<nlohmann::ordered_json>;
extern template nlohmann::json parse_json(std::string_view, const JsonLimits&, const JsonRefusal&);
extern template nlohmann::ordered_json parse_json(std::string_view, const JsonLimits&, const JsonRefusal&);

}  // namespace shard
