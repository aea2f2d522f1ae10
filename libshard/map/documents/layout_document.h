/// \file
/// Layout documents: documents of the schema `shardctl.layout/1` that say how tensors are sharded over a mesh.
/// docs/layouts.md has every key.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "libshard/catalog/layout.h"

namespace shard {

/// Reads a layout document, JSON or YAML: the keys `schema`, `name`, `mesh` (axes slowest first),
/// `files.path`, and `rules` with `id`, `match` (RE2, whole name) and `shard`: a list of `{"axis", "dim"}` in the order
/// of cutting, each cut by the rule of torch.chunk, with keys `split` and `widths` as maps have them, or with
/// `split_factor` as _StridedShard. Axes that a rule does not name hold replicas. A `match` that only lists names
/// (escaped, with '|' between them) may list millions; all others together are limited by PatternSets.
///
/// \throws Error kInvalidArgument  neither JSON nor YAML, the wrong schema, a key of the wrong type, an unknown axis,
///   too deep, too large patterns.
/// \throws Error kUnsupported      any other key, by name.
MeshLayout parse_layout_document(std::string_view text, const std::string& file);

/// A tensor and its placement on each mesh axis.
struct PlacedName {
  std::string_view name;
  std::span<const Placement> placements;  ///< One per axis; dims not negative.
};
/// The document from which parse_layout_document reads these placements for exactly these names.
/// \throws Error kUnsupported  a name that is not valid UTF-8.
std::string dump_layout_document(const std::string& file_path, std::span<const MeshAxis> mesh,
                                 std::span<const PlacedName> names);

}  // namespace shard
