/// \file Layout documents: documents of the schema `shardctl.layout/1` that define how tensors are sharded over a mesh.
///   docs/layouts.md has every key.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "libshard/catalog/layouts/layout.h"

namespace shard {

/// Parses a layout document, JSON or YAML. Its keys are `schema`, `name`, `mesh` (axes slowest first), `files.path`,
/// and `rules` with `id`, `match` (RE2, whole name) and `shard`. `shard` is a list of `{"axis", "dim"}` in the order of
/// sharding. Each entry follows the rule of torch.chunk, the keys `split` and `widths` as in maps, or `split_factor` as
/// in _StridedShard. Tensors are replicated over axes that a rule does not name. A `match` that only lists names
/// (escaped, with '|' between them) may list millions. PatternSets limits all other patterns together.
///
/// \throws Error kInvalidArgument  neither JSON nor YAML, the wrong schema, a key of the wrong type, an unknown axis,
///   too deep, too large patterns.
/// \throws Error kUnsupported      any other key, by name.
MeshLayout parse_layout_document(std::string_view text, const std::string& file);

/// A tensor and its placement on each mesh axis.
struct PlacedName {
  std::string_view name;
  std::span<const Placement> placements;  ///< One per axis; dims are not negative.
};
/// Writes a document from which parse_layout_document reads these placements for exactly these names.
/// \throws Error kUnsupported  a name that is not valid UTF-8.
std::string dump_layout_document(const std::string& file_path, std::span<const MeshAxis> mesh,
                                 std::span<const PlacedName> names);

}  // namespace shard
