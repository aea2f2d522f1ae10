/// \file
/// Reads the rules of a map document, and how it lays them in flat buffers. Inside libshard/map only.
#pragma once

#include <cstddef>
#include <vector>

#include "libshard/catalog/json_place.h"
#include "libshard/map/document.h"

namespace shard {

/// \pre the document's mesh was read
MapRule read_rule(const JsonPlace& place, const MapDocument& document);
/// The axis that a text names, as its index in the mesh.
std::size_t read_axis(const JsonPlace& place, const std::vector<MapMeshAxis>& mesh);
/// Axes and the coordinates on them.
std::vector<MapOn> read_on(const JsonPlace& place, const std::vector<MapMeshAxis>& mesh);
/// A name with placeholders.
NameTemplate read_template(const JsonPlace& place);
/// \pre the document's vars, mesh, index and rules were read
MapFlatten read_flatten(const JsonPlace& place, const MapDocument& document);
/// By torch's name or a short one, in letters of either case.
DType read_dtype(const JsonPlace& place);
/// Variables with the texts or numbers that they must have. \pre the document's vars were read
std::vector<MapCondition> read_conditions(const JsonPlace& place, const MapDocument& document);

}  // namespace shard
