/// \file Reads the keys that layout documents and maps share: the schema, axes, dimensions, patterns and the entries of
///   `shard`. Inside libshard/map only.
#pragma once

#include <fmt/format.h>
#include <re2/re2.h>

#include <algorithm>
#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "libshard/map/documents/document.h"
#include "libshard/map/documents/json_place.h"

namespace shard {

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

}  // namespace shard
