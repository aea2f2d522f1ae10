#include "libshard/manifest/read_json.h"

#include <fmt/format.h>

#include "libshard/core/json_builder.h"

namespace shard {

Error bad_document(std::string_view document, const std::string& message) {
  return Error(ErrorCode::kCorruption, fmt::format("{}: {}", document, message)).of_kind(FindingKind::kBadHeader);
}

nlohmann::json read_json(std::string_view text, std::string_view document, int max_depth) {
  return parse_json<nlohmann::json>(text, {.depth = max_depth},
                                    [&](const std::string& what) { return bad_document(document, what); });
}

}  // namespace shard
