#include "libshard/manifest/read_json.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

namespace shard {

Error bad_document(std::string_view document, const std::string& message) {
  return Error(ErrorCode::kCorruption, fmt::format("{}: {}", document, message)).of_kind(FindingKind::kBadHeader);
}

nlohmann::json read_json(std::string_view text, std::string_view document, int max_depth) {
  using nlohmann::json;
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
