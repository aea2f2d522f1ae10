#include "formats/dcp_hf/recorded.h"

#include <fmt/format.h>

#include "libshard/core/error.h"

namespace shard::dcp_hf {

namespace {

[[noreturn]] void fail(const char* key, const std::string& what, const std::string& file) {
  throw Error(ErrorCode::kCorruption, fmt::format("__metadata__ '{}' {}", key, what))
      .in_file(file)
      .of_kind(FindingKind::kBadHeader);
}

}  // namespace

void record(const Recorded& recorded, safetensors::MetadataMap& metadata) {
  metadata[kWorldSizeKey] = std::to_string(recorded.world_size);
  metadata[kRanksKey] = to_string(recorded.ranks);
  metadata[kShapesKey] = recorded.shapes;
}

std::optional<Recorded> take_recorded(safetensors::MetadataMap& metadata, const std::string& file) {
  auto world_size = metadata.extract(kWorldSizeKey), ranks = metadata.extract(kRanksKey),
       shapes = metadata.extract(kShapesKey);
  if (world_size.empty() && ranks.empty() && shapes.empty()) return std::nullopt;
  if (world_size.empty()) fail(kWorldSizeKey, "is missing", file);
  if (ranks.empty()) fail(kRanksKey, "is missing", file);
  if (shapes.empty()) fail(kShapesKey, "is missing", file);

  // A single number is a run of one.
  const auto size = parse_runs(world_size.mapped());
  if (!size || size->size() != 1 || size->front().first != size->front().second || size->front().first == 0) {
    fail(kWorldSizeKey, fmt::format("is '{}', not a number of ranks", world_size.mapped()), file);
  }
  const auto runs = parse_runs(ranks.mapped());
  if (!runs) fail(kRanksKey, fmt::format("is '{}', not a list of ranks", ranks.mapped()), file);
  if (runs->back().second >= size->front().first) {
    fail(kRanksKey, fmt::format("is '{}', of {} ranks", ranks.mapped(), size->front().first), file);
  }
  return Recorded{size->front().first, *runs, std::move(shapes.mapped())};
}

}  // namespace shard::dcp_hf
