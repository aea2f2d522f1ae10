#include "libshard/stores/remote/json_answer.h"

#include <cstddef>
#include <cstdint>
#include <set>

#include "libshard/core/error.h"
#include "libshard/core/json_builder.h"

namespace shard::stores {

namespace {

/// Receives the events of a parser, and keeps the strings that are values in the object `weight_map`.
class IndexFiles {
 public:
  std::vector<std::string> take() const { return {names_.begin(), names_.end()}; }

  bool null() { return true; }
  bool boolean(bool /*value*/) { return true; }
  bool number_integer(std::int64_t /*value*/) { return true; }
  bool number_unsigned(std::uint64_t /*value*/) { return true; }
  bool number_float(double /*value*/, const std::string& /*text*/) { return true; }
  bool binary(nlohmann::json::binary_t& /*value*/) { return true; }
  bool string(const std::string& value) {
    if (depth_ == 2 && is_map_) names_.insert(value);
    return true;
  }
  bool key(const std::string& name) {
    if (depth_ == 1) is_map_ = name == "weight_map";
    return true;
  }
  bool start_object(std::size_t /*elements*/) { return ++depth_, true; }
  bool end_object() { return --depth_, true; }
  bool start_array(std::size_t /*elements*/) {
    is_map_ = is_map_ && depth_ != 1;
    return ++depth_, true;
  }
  bool end_array() { return --depth_, true; }
  bool parse_error(std::size_t /*position*/, const std::string& /*token*/,
                   const nlohmann::detail::exception& /*error*/) {
    names_.clear();
    return false;
  }

 private:
  std::set<std::string> names_;
  int depth_ = 0;
  bool is_map_ = false;  ///< Whether the last key of the document is `weight_map`, and its value an object.
};

}  // namespace

nlohmann::json parse_answer(std::string_view text) {
  const auto refused = [](const std::string& what) {
    return Error(ErrorCode::kCorruption, "cannot use the server's answer").because(what);
  };
  try {
    return parse_json<nlohmann::json>(text, {.repeats_keys = true}, refused);
  } catch (const Error&) {
    return nullptr;
  }
}

std::string text_in(const nlohmann::json& document, const char* name) {
  const auto found = document.is_object() ? document.find(name) : document.end();
  return found != document.end() && found->is_string() ? found->get<std::string>() : std::string();
}

std::vector<std::string> files_in_index(std::string_view json) {
  IndexFiles files;
  nlohmann::json::sax_parse(json.begin(), json.end(), &files);
  return files.take();
}

}  // namespace shard::stores
