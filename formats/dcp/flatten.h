/// \file
/// Flattens a tree of containers to the flat dict that dcp stores.
///
/// Source: torch/distributed/checkpoint/_traverse.py of torch 2.11. Mappings are always descended. Lists are descended
/// if they contain a tensor, a mapping or such a list. Everything else is a leaf, including tuples. Two differences
/// from torch: a tuple that contains tensors is descended like a list, because torch would hide its tensors in a bytes
/// item. And an empty dict inside a list is a leaf, because torch cannot load a list that lacks an index.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "formats/dcp/metadata.h"
#include "libshard/catalog/catalog.h"

namespace shard::dcp {

struct TensorLeaf {
  std::string_view name;  ///< The flat key: the path's parts joined by dots.
  Path path;              ///< Never empty.
  std::uint32_t tensor;   ///< Index into the catalog's tensors.
};

/// Leaves in the order of the tree. There may be millions, so no value is stored twice.
struct Flat {
  std::vector<TensorLeaf> tensors;
  std::vector<ObjectEntry> objects;   ///< With paths. The number of an object's item is its own index.
  std::vector<const Value*> values;   ///< The value of each object.
  std::vector<std::string> warnings;  ///< One line per kind of loss.
};

/// Flattens `catalog.root`, or the paths of the tensors and objects if there is no root. Names and paths are stored in
/// the catalog's arena.
/// \throws Error kUnsupported  two paths have the same flat key (names both); a leaf cannot be stored, such as a tensor
///   inside an object or an opaque value (names it); the root is a bare tensor.
Flat flatten(const Catalog& catalog);

}  // namespace shard::dcp
