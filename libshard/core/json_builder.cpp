#include "libshard/core/json_builder.h"

#include <fmt/format.h>

#include <type_traits>
#include <utility>

namespace shard {

namespace {

/// The memory of each kind of value in bytes, including overhead of an allocation and of a list's growth.
constexpr std::size_t kValueBytes = 32, kStringBytes = 48, kListBytes = 32, kObjectBytes = 48, kKeyBytes = 80;

template <class Json>
constexpr bool kIsOrdered = std::is_same_v<Json, nlohmann::ordered_json>;

}  // namespace

template <class Json>
void JsonBuilder<Json>::hold(std::size_t bytes) {
  if (bytes > memory_left_) throw refusal_("its many values are out of proportion to its length");
  memory_left_ -= bytes;
}

template <class Json>
bool JsonBuilder<Json>::add(Json value) {
  if (++values_ > limits_.values) throw refusal_(fmt::format("it has more than {} values", limits_.values));
  if (open_.empty()) {
    root_ = std::move(value);
    slot_ = &root_;
  } else if (open_.back()->is_array()) {
    hold(kValueBytes);
    auto& list = open_.back()->template get_ref<typename Json::array_t&>();
    list.push_back(std::move(value));
    slot_ = &list.back();
  } else {
    *slot_ = std::move(value);
  }
  return true;
}

template <class Json>
void JsonBuilder<Json>::open(Json value) {
  add(std::move(value));
  open_.push_back(slot_);
  if (std::ssize(open_) > limits_.depth) throw refusal_(fmt::format("it nests deeper than {}", limits_.depth));
}

template <class Json>
bool JsonBuilder<Json>::string(std::string& value) {
  hold(kStringBytes);
  return add(std::move(value));
}

template <class Json>
bool JsonBuilder<Json>::start_object(std::size_t /*elements*/) {
  hold(kObjectBytes);
  open(Json::object());
  if constexpr (kIsOrdered<Json>) keys_.emplace_back();
  return true;
}

template <class Json>
bool JsonBuilder<Json>::key(std::string& name) {
  hold(kKeyBytes);
  auto& object = open_.back()->template get_ref<typename Json::object_t&>();
  const auto repeated = [&] {
    return refusal_(fmt::format("the key '{}' appears twice in one object", name)).found(name);
  };
  if constexpr (kIsOrdered<Json>) {
    if (!keys_.back().insert(name).second) throw repeated();
    typename Json::object_t::Container& pairs = object;
    slot_ = &pairs.emplace_back(std::move(name), Json()).second;
  } else {
    const auto [place, is_new] = object.emplace(name, Json());
    if (!is_new && !limits_.repeats_keys) throw repeated();
    slot_ = &place->second;
  }
  if (object.size() > limits_.keys) throw refusal_(fmt::format("an object has more than {} keys", limits_.keys));
  return true;
}

template <class Json>
bool JsonBuilder<Json>::end_object() {
  open_.pop_back();
  if constexpr (kIsOrdered<Json>) keys_.pop_back();
  return true;
}

template <class Json>
bool JsonBuilder<Json>::start_array(std::size_t /*elements*/) {
  hold(kListBytes);
  open(Json::array());
  return true;
}

template <class Json>
bool JsonBuilder<Json>::end_array() {
  open_.pop_back();
  return true;
}

template <class Json>
bool JsonBuilder<Json>::parse_error(std::size_t /*position*/, const std::string& /*token*/,
                                    const nlohmann::detail::exception& error) {
  throw refusal_("it is not JSON").because(error.what());
}

template <class Json>
Json parse_json(std::string_view text, const JsonLimits& limits, const JsonRefusal& refusal) {
  // The parser takes a NUL for the end of the text.
  if (text.find('\0') != std::string_view::npos) throw refusal("it is not JSON").because("it contains a NUL byte");
  JsonBuilder<Json> builder(text.size(), limits, refusal);
  Json::sax_parse(text.begin(), text.end(), &builder);
  return builder.take();
}

template class JsonBuilder<nlohmann::json>;
template class JsonBuilder<nlohmann::ordered_json>;
template nlohmann::json parse_json(std::string_view, const JsonLimits&, const JsonRefusal&);
template nlohmann::ordered_json parse_json(std::string_view, const JsonLimits&, const JsonRefusal&);

}  // namespace shard
