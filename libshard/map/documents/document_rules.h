/// \file
/// Reads the parts of documents: the keys that layout documents and maps share, the rules of a map document, and its
/// layout of flat buffers. Inside libshard/map only.
#pragma once

#include <fmt/format.h>
#include <re2/re2.h>

#include <algorithm>
#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "libshard/catalog/selection/pattern_sets.h"
#include "libshard/map/documents/document.h"
#include "libshard/map/documents/json_place.h"

namespace shard {

// The keys that layout documents and maps share: the schema, axes, dimensions, patterns and the entries of `shard`.

/// Checks the schema. \throws Error kInvalidArgument  the document is not an object, or its key `schema` is not
/// "shardctl.layout/1".
void check_schema(const JsonPlace& top);

/// Reads the name of an axis. \returns its index in the mesh.
template <class Axis>
std::size_t read_axis(const JsonPlace& place, const std::vector<Axis>& mesh) {
  const std::string name = place.text();
  const auto axis = std::ranges::find(mesh, name, &Axis::name);
  if (axis != mesh.end()) return static_cast<std::size_t>(axis - mesh.begin());
  throw JsonPlace::wrong(fmt::format("{} names the axis '{}', which mesh lacks", place.where(), name)).found(name);
}

/// Reads the number of a dimension, which is at least `least`.
int read_dim(const JsonPlace& place, int least = 0);

/// \throws Error kInvalidArgument  the text is none of the four words.
CutRule read_split(const JsonPlace& place);

/// Reads the keys `dim`, `split` and `widths` of an entry of `shard`. `otherwise` is the rule without `split`.
/// \throws Error kInvalidArgument  either widths or split "widths" is missing.
MapCut read_cut(const JsonPlace& place, std::size_t axis, CutRule otherwise, int least_dim = 0);

/// Checks the compiled pattern at `place`, which is null if PatternSizes refuses it. \returns the pattern.
/// \throws Error kInvalidArgument  the pattern is null, or not a regular expression.
std::unique_ptr<RE2> checked_pattern(const JsonPlace& place, std::unique_ptr<RE2> compiled);
/// The error for patterns that are too large together.
Error too_large_patterns();

// The keys of maps. All functions throw Error kInvalidArgument if a value is not one that the key may have.

/// The limit on rules, including the copies for all states, and the limit on states.
inline constexpr std::size_t kMaxResolvedRules = 1 << 16, kMaxStates = 1 << 12;

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
