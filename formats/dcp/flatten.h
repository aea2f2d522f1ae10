/// \file
/// A tree of containers as the flat dict that dcp stores.
///
/// Source: torch/distributed/checkpoint/_traverse.py of torch 2.11. Mappings are always descended, lists when they hold
/// a tensor, a mapping or such a list; everything else is a leaf, a tuple too. Differing from torch, which would hide
/// the tensors in a bytes item, a tuple that holds tensors is descended like a list.
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

/// Leaves in the order of the tree. There may be millions, so nothing is held twice.
struct Flat {
  std::vector<TensorLeaf> tensors;
  std::vector<ObjectEntry> objects;   ///< With paths; their items are their own numbers.
  std::vector<const Value*> values;   ///< Of each object.
  std::vector<std::string> warnings;  ///< One line for each kind of loss.
};

/// Flattens `catalog.root`, or without one the tensors' and objects' paths. Names and paths go into the catalog's
/// arena. \throws Error kUnsupported  two paths with one flat key, naming both; a leaf that cannot be stored (a tensor
/// inside
///   an object, an opaque value), by name; a bare tensor.
Flat flatten(const Catalog& catalog);

}  // namespace shard::dcp
