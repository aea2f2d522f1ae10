#include "libshard/manifest/read_json.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

namespace shard {

Error bad_document(std::string_view document, const std::string& message) {
  return Error(ErrorCode::kCorruption, fmt::format("{}: {}", document, message)).of_kind(FindingKind::kBadHeader);
}

namespace {

/// A text of many tiny values takes many times its length in memory.
void refuse_dense(std::string_view text, std::string_view document) {
  constexpr std::size_t kValue = 16, kObject = 100, kMostEach = 4, kFree = 64 << 10;
  std::size_t held = 0;
  bool in_string = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string && c == '\\') {
      ++i;
    } else if (c == '"') {
      in_string = !in_string;
    } else if (!in_string && (c == ',' || c == '[' || c == '{')) {
      held += c == '{' ? kObject : kValue;
    }
  }
  if (held > kFree + kMostEach * text.size()) throw bad_document(document, "its many values are out of proportion");
}

}  // namespace

nlohmann::json read_json(std::string_view text, std::string_view document, int max_depth) {
  using nlohmann::json;
  refuse_dense(text, document);
  const auto limit_depth = [&](int depth, json::parse_event_t, json&) {
    if (depth > max_depth) throw bad_document(document, "it nests too deep");
    return true;
  };
  try {
    return json::parse(text, limit_depth);
  } catch (const json::exception& error) {
    throw bad_document(document, "not JSON").because(error.what());
  }
}

}  // namespace shard
