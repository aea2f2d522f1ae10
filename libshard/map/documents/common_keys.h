/// \file
/// Keys that layout documents and maps have in common: the schema, axes, dimensions, patterns and the entries of
/// `shard`. Inside libshard/map only.
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

/// \throws Error kInvalidArgument  not an object, or its key `schema` is not "shardctl.layout/1".
void check_schema(const JsonPlace& top);

/// The axis of a mesh that a text names, as its index.
template <class Axis>
std::size_t read_axis(const JsonPlace& place, const std::vector<Axis>& mesh) {
  const std::string name = place.text();
  const auto axis = std::ranges::find(mesh, name, &Axis::name);
  if (axis != mesh.end()) return static_cast<std::size_t>(axis - mesh.begin());
  throw JsonPlace::wrong(fmt::format("{} names the axis '{}', which mesh lacks", place.where(), name)).found(name);
}

/// The number of a dimension, from `least` on.
int read_dim(const JsonPlace& place, int least = 0);

/// \throws Error kInvalidArgument  none of the four words.
CutRule read_split(const JsonPlace& place);

/// The keys `dim`, `split` and `widths` of an entry of `shard`; `otherwise` counts without `split`.
/// \throws Error kInvalidArgument  one of widths and split "widths" without the other.
MapCut read_cut(const JsonPlace& place, std::size_t axis, CutRule otherwise, int least_dim = 0);

/// `compiled` is the pattern at `place`, or null if PatternSizes refuses it.
/// \throws Error kInvalidArgument  null, or not a regular expression
std::unique_ptr<RE2> checked_pattern(const JsonPlace& place, std::unique_ptr<RE2> compiled);
/// Error for patterns that are too large together.
Error too_large_patterns();

}  // namespace shard
