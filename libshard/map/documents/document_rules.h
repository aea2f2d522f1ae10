/// \file Reads the rules of a map document, and its layout of flat buffers. Inside libshard/map only.
#pragma once

#include <re2/re2.h>

#include <cstddef>
#include <memory>
#include <vector>

#include "libshard/catalog/selection/pattern_sets.h"
#include "libshard/map/documents/document.h"
#include "libshard/map/documents/json_place.h"

namespace shard {

/// The limit on rules, including the copies for all states, and the limit on states.
inline constexpr std::size_t kMaxSettledRules = 1 << 16, kMaxStates = 1 << 12;

/// \pre the document's mesh was read
MapRule read_rule(const JsonPlace& place, const MapDocument& document, PatternSizes& sizes);
/// Compiles a regular expression. `sizes` limits the size of all patterns in the document.
std::unique_ptr<RE2> read_pattern(const JsonPlace& place, std::string_view pattern, PatternSizes& sizes);
/// Reads the rule for replicas: `equal` or `first`.
ReduceRule read_reduce(const JsonPlace& place);
/// Reads axes and the coordinates on them.
std::vector<MapOn> read_on(const JsonPlace& place, const std::vector<MapMeshAxis>& mesh);
/// Reads a name with placeholders.
NameTemplate read_template(const JsonPlace& place);
/// \pre the document's vars, mesh, index and rules were read
MapFlatten read_flatten(const JsonPlace& place, const MapDocument& document, PatternSizes& sizes);
/// Reads torch's name of a dtype, or a short one. Case does not matter.
DType read_dtype(const JsonPlace& place);
/// Reads variables and the texts or numbers that they may have. \pre the document's vars were read
std::vector<MapCondition> read_conditions(const JsonPlace& place, const MapDocument& document);

}  // namespace shard
