#include "libshard/map/documents/document_text.h"

#include <fmt/format.h>
#include <yaml.h>

#include <string>

#include "libshard/core/error.h"
#include "libshard/core/json_builder.h"
#include "libshard/map/documents/json_place.h"

namespace shard {

namespace {

using Json = nlohmann::ordered_json;

/// Keys of an ordered object are searched linearly, so their number has a limit.
JsonLimits limits_of(std::size_t max_values) { return {.depth = 32, .keys = 256, .values = max_values}; }

/// One event of libyaml, which owns the event's texts.
class YamlEvent {
 public:
  YamlEvent() = default;
  YamlEvent(const YamlEvent&) = delete;
  YamlEvent& operator=(const YamlEvent&) = delete;
  ~YamlEvent() { yaml_event_delete(&event_); }

  yaml_event_t* get() { return &event_; }
  yaml_event_type_t type() const { return event_.type; }
  std::size_t line() const { return event_.start_mark.line + 1; }
  std::string scalar() const {
    const auto& value = event_.data.scalar;
    return {reinterpret_cast<const char*>(value.value), value.length};
  }
  bool is_plain() const { return event_.data.scalar.style == YAML_PLAIN_SCALAR_STYLE; }
  /// A feature of YAML that JSON lacks; null if there is none.
  const char* beyond_json() const {
    if (type() == YAML_ALIAS_EVENT) return "an alias";
    const auto beyond = [](const auto& node) {
      return node.anchor != nullptr ? "an anchor" : node.tag != nullptr ? "a tag" : nullptr;
    };
    if (type() == YAML_SCALAR_EVENT) return beyond(event_.data.scalar);
    if (type() == YAML_SEQUENCE_START_EVENT) return beyond(event_.data.sequence_start);
    if (type() == YAML_MAPPING_START_EVENT) return beyond(event_.data.mapping_start);
    return nullptr;
  }

 private:
  yaml_event_t event_{};
};

/// Passes libyaml's events to a builder. Nothing is stored by name, so the cost is linear in the text.
class YamlReader {
 public:
  YamlReader(std::string_view text, const JsonLimits& limits) : builder_(text.size(), limits, JsonPlace::wrong) {
    if (yaml_parser_initialize(&parser_) == 0) throw Error(ErrorCode::kResource, "out of memory");
    yaml_parser_set_encoding(&parser_, YAML_UTF8_ENCODING);
    const char* const begin = text.empty() ? "" : text.data();  // libyaml asserts that the pointer is not null.
    yaml_parser_set_input_string(&parser_, reinterpret_cast<const unsigned char*>(begin), text.size());
  }
  YamlReader(const YamlReader&) = delete;
  YamlReader& operator=(const YamlReader&) = delete;
  ~YamlReader() { yaml_parser_delete(&parser_); }

  Json read() {
    skip(YAML_STREAM_START_EVENT);
    skip(YAML_DOCUMENT_START_EVENT);
    YamlEvent first;
    next(first);
    read_value(first);
    skip(YAML_DOCUMENT_END_EVENT);
    skip(YAML_STREAM_END_EVENT);
    return builder_.take();
  }

 private:
  Error refused(std::size_t line, std::string_view what) const {
    return JsonPlace::wrong(fmt::format("line {} uses {}, which shardctl does not support in YAML", line, what));
  }

  void next(YamlEvent& event) {
    if (yaml_parser_parse(&parser_, event.get()) != 0) {
      if (const char* const beyond = event.beyond_json()) throw refused(event.line(), beyond);
      return;
    }
    const std::size_t line = parser_.problem_mark.line != 0 ? parser_.problem_mark.line : parser_.mark.line;
    throw JsonPlace::wrong("it is neither JSON (starting with '{') nor YAML")
        .because(fmt::format("line {}: {}", line + 1, parser_.problem != nullptr ? parser_.problem : "out of memory"));
  }

  void skip(yaml_event_type_t expected) {
    YamlEvent event;
    next(event);
    if (event.type() == expected) return;
    if (event.type() == YAML_STREAM_END_EVENT) throw JsonPlace::wrong("it is empty");
    throw refused(event.line(), "a second document");
  }

  /// Reads a value. \pre the event begins a value. The builder limits the depth.
  void read_value(const YamlEvent& event) {
    if (event.type() == YAML_SEQUENCE_START_EVENT) return read_list();
    if (event.type() == YAML_MAPPING_START_EVENT) return read_object();
    std::string text = event.scalar();
    if (event.is_plain() && text.empty()) {
      builder_.null();
    } else if (!event.is_plain() || !read_plain(text)) {
      builder_.string(text);
    }
  }

  /// Reads a plain scalar. \returns whether the text is a number, true, false or null of JSON.
  bool read_plain(const std::string& text) {
    const Json value = Json::parse(text, nullptr, false);
    if (value.is_number_unsigned()) return builder_.number_unsigned(value.get<std::uint64_t>());
    if (value.is_number_integer()) return builder_.number_integer(value.get<std::int64_t>());
    if (value.is_number_float()) return builder_.number_float(value.get<double>(), text);
    if (value.is_boolean()) return builder_.boolean(value.get<bool>());
    return value.is_null() && builder_.null();
  }

  void read_list() {
    builder_.start_array();
    for (;;) {
      YamlEvent event;
      next(event);
      if (event.type() == YAML_SEQUENCE_END_EVENT) break;
      read_value(event);
    }
    builder_.end_array();
  }

  void read_object() {
    builder_.start_object();
    for (;;) {
      YamlEvent key, value;
      next(key);
      if (key.type() == YAML_MAPPING_END_EVENT) break;
      if (key.type() != YAML_SCALAR_EVENT) throw refused(key.line(), "a key that is a list or a mapping");
      std::string name = key.scalar();
      builder_.key(name);
      next(value);
      read_value(value);
    }
    builder_.end_object();
  }

  JsonBuilder<Json> builder_;
  yaml_parser_t parser_;
};

}  // namespace

Json parse_document_text(std::string_view text, std::size_t max_values) {
  constexpr std::string_view kByteOrderMark = "\xef\xbb\xbf";
  if (text.starts_with(kByteOrderMark)) text.remove_prefix(kByteOrderMark.size());
  const std::size_t begin = text.find_first_not_of(" \t\r\n");
  const bool is_json = begin != std::string_view::npos && (text[begin] == '{' || text[begin] == '[');
  const JsonLimits limits = limits_of(max_values);
  return is_json ? parse_json<Json>(text, limits, JsonPlace::wrong) : YamlReader(text, limits).read();
}

}  // namespace shard
