#include "libshard/catalog/document_text.h"

#include <fmt/format.h>
#include <yaml.h>

#include <set>
#include <string>
#include <utility>

#include "libshard/core/error.h"

namespace shard {

namespace {

using Json = nlohmann::ordered_json;

constexpr int kMaxDepth = 32;
constexpr std::size_t kMaxKeys = 256;  ///< An ordered object is searched from its beginning.

Error wrong_text(const std::string& message) {
  return Error(ErrorCode::kInvalidArgument, "cannot use the layout document: " + message);
}

void check_depth(int depth) {
  if (depth > kMaxDepth) throw wrong_text(fmt::format("it nests deeper than {}", kMaxDepth));
}

/// The keys of one object so far.
class Keys {
 public:
  void add(const std::string& key) {
    if (!keys_.insert(key).second) {
      throw wrong_text(fmt::format("the key '{}' appears twice in one object", key)).found(key);
    }
    if (keys_.size() > kMaxKeys) throw wrong_text(fmt::format("an object has more than {} keys", kMaxKeys));
  }

 private:
  std::set<std::string> keys_;
};

Json parse_json(std::string_view text) {
  std::vector<Keys> keys;
  const auto check = [&](int depth, Json::parse_event_t event, Json& parsed) {
    check_depth(depth);
    if (event == Json::parse_event_t::object_start) keys.emplace_back();
    if (event == Json::parse_event_t::object_end) keys.pop_back();
    if (event == Json::parse_event_t::key) keys.back().add(parsed.get<std::string>());
    return true;
  };
  try {
    return Json::parse(text, check);
  } catch (const Json::exception& error) {
    throw wrong_text("it is not JSON").because(error.what());
  }
}

/// One event of libyaml's, which owns its texts.
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
  /// What JSON cannot say; null where it can.
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

/// From libyaml's events to values. Nothing is kept by name, so a document costs what its text does.
class YamlReader {
 public:
  explicit YamlReader(std::string_view text) {
    if (yaml_parser_initialize(&parser_) == 0) throw Error(ErrorCode::kResource, "out of memory");
    yaml_parser_set_encoding(&parser_, YAML_UTF8_ENCODING);
    const char* const begin = text.empty() ? "" : text.data();  // libyaml asserts that there is one.
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
    Json value = read_value(first, 0);
    skip(YAML_DOCUMENT_END_EVENT);
    skip(YAML_STREAM_END_EVENT);
    return value;
  }

 private:
  Error refused(std::size_t line, std::string_view what) const {
    return wrong_text(fmt::format("line {} has {}, which this program does not read in YAML", line, what));
  }

  void next(YamlEvent& event) {
    if (yaml_parser_parse(&parser_, event.get()) != 0) {
      if (const char* const beyond = event.beyond_json()) throw refused(event.line(), beyond);
      return;
    }
    const std::size_t line = parser_.problem_mark.line != 0 ? parser_.problem_mark.line : parser_.mark.line;
    throw wrong_text("it is neither JSON, which begins with '{', nor YAML")
        .because(fmt::format("line {}: {}", line + 1, parser_.problem != nullptr ? parser_.problem : "out of memory"));
  }

  void skip(yaml_event_type_t expected) {
    YamlEvent event;
    next(event);
    if (event.type() == expected) return;
    if (event.type() == YAML_STREAM_END_EVENT) throw wrong_text("it is empty");
    throw refused(event.line(), "a second document");
  }

  Json read_value(const YamlEvent& event, int depth) {
    check_depth(depth);
    if (event.type() == YAML_SEQUENCE_START_EVENT) return read_list(depth);
    if (event.type() == YAML_MAPPING_START_EVENT) return read_object(depth);
    std::string text = event.scalar();
    if (!event.is_plain()) return text;
    if (text.empty()) return nullptr;
    Json value = Json::parse(text, nullptr, false);
    const bool is_json = value.is_number() || value.is_boolean() || value.is_null();
    return is_json ? value : Json(std::move(text));
  }

  Json read_list(int depth) {
    Json list = Json::array();
    for (;;) {
      YamlEvent event;
      next(event);
      if (event.type() == YAML_SEQUENCE_END_EVENT) return list;
      list.push_back(read_value(event, depth + 1));
    }
  }

  Json read_object(int depth) {
    Json object = Json::object();
    Keys keys;
    for (;;) {
      YamlEvent key, value;
      next(key);
      if (key.type() == YAML_MAPPING_END_EVENT) return object;
      if (key.type() != YAML_SCALAR_EVENT) throw refused(key.line(), "a key that is a list or a mapping");
      keys.add(key.scalar());
      next(value);
      object[key.scalar()] = read_value(value, depth + 1);
    }
  }

  yaml_parser_t parser_;
};

}  // namespace

Json parse_document_text(std::string_view text) {
  const std::size_t begin = text.find_first_not_of(" \t\r\n");
  const bool is_json = begin != std::string_view::npos && (text[begin] == '{' || text[begin] == '[');
  return is_json ? parse_json(text) : YamlReader(text).read();
}

}  // namespace shard
