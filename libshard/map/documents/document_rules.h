/// \file
/// Reads the rules of a map document, and how it lays them in flat buffers. Inside libshard/map only.
#pragma once

#include <re2/re2.h>

#include <cstddef>
#include <memory>
#include <vector>

#include "libshard/map/documents/json_place.h"
#include "libshard/catalog/pattern_sets.h"
#include "libshard/map/documents/document.h"

namespace shard {

/// Rules of a document, and those that it has for all its states together; and states.
inline constexpr std::size_t kMaxSettledRules = 1 << 16, kMaxStates = 1 << 12;

/// \pre the document's mesh was read
MapRule read_rule(const JsonPlace& place, const MapDocument& document, PatternSizes& sizes);
/// A regular expression. `sizes` has all of the document.
std::unique_ptr<RE2> read_pattern(const JsonPlace& place, std::string_view pattern, PatternSizes& sizes);
/// The word for what is done with replicas.
ReduceRule read_reduce(const JsonPlace& place);
/// Axes and the coordinates on them.
std::vector<MapOn> read_on(const JsonPlace& place, const std::vector<MapMeshAxis>& mesh);
/// A name with placeholders.
NameTemplate read_template(const JsonPlace& place);
/// \pre the document's vars, mesh, index and rules were read
MapFlatten read_flatten(const JsonPlace& place, const MapDocument& document, PatternSizes& sizes);
/// By torch's name or a short one, in letters of either case.
DType read_dtype(const JsonPlace& place);
/// Variables with the texts or numbers that they must have. \pre the document's vars were read
std::vector<MapCondition> read_conditions(const JsonPlace& place, const MapDocument& document);

}  // namespace shard
