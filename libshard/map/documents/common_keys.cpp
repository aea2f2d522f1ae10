#include "libshard/map/documents/common_keys.h"

#include <cstdint>
#include <optional>
#include <string_view>

#include "libshard/catalog/selection/pattern_sets.h"
#include "libshard/core/box.h"

namespace shard {

namespace {

constexpr std::string_view kSchema = "shardctl.layout/1";

}  // namespace

void check_schema(const JsonPlace& top) {
  if (!top.json().is_object()) throw top.not_a("an object");
  const std::string schema = top.text_of("schema");
  if (schema != kSchema) throw JsonPlace::wrong("wrong schema").expected(kSchema).found(schema);
}

int read_dim(const JsonPlace& place, int least) {
  const JsonPlace::Json& dim = place.json();
  const bool fits =
      dim.is_number_integer() && (dim.is_number_unsigned() ? dim.get<std::uint64_t>() < std::uint64_t{kMaxDims}
                                                           : dim.get<std::int64_t>() >= least);
  if (!fits) throw place.not_a("a dimension").expected(fmt::format("{} to {}", least, kMaxDims - 1)).found(dim.dump());
  return dim.get<int>();
}

CutRule read_split(const JsonPlace& place) {
  return static_cast<CutRule>(place.word({"even", "chunk", "first_extra", "widths"}));
}

MapCut read_cut(const JsonPlace& place, std::size_t axis, CutRule otherwise, int least_dim) {
  MapCut cut{axis, 0, otherwise};
  if (const auto dim = place.find("dim")) cut.dim = read_dim(*dim, least_dim);
  if (const auto split = place.find("split")) cut.split = read_split(*split);
  const auto widths = place.find("widths");
  if (widths) cut.widths = widths->expressions();
  if (widths && cut.widths.empty()) throw widths->not_a("a list of widths, one for each part");
  if ((cut.split == CutRule::kWidths) != widths.has_value()) {
    throw JsonPlace::wrong(place.where() + ": widths and split \"widths\" stand together");
  }
  return cut;
}

std::unique_ptr<RE2> checked_pattern(const JsonPlace& place, std::unique_ptr<RE2> compiled) {
  if (compiled == nullptr) throw too_large_patterns();
  if (!compiled->ok()) throw place.not_a("a regular expression").found(place.text()).because(compiled->error());
  return compiled;
}

Error too_large_patterns() {
  return JsonPlace::wrong("the patterns of the document are too large")
      .because(fmt::format("together they may compile to at most {} RE2 instructions, and {} bytes each",
                           PatternSets::kMaxPrograms, PatternSizes::kMaxText));
}

}  // namespace shard
