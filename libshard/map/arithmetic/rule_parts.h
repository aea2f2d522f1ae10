/// \file The index arithmetic of one rule: which boxes of its logical tensors each rank stores, and where.
///
/// Along each dimension, a stored tensor is a list of *runs*: logical positions [logical, logical + length) of a
/// segment are at local positions local, local + step, ... Positions that no run covers are padding. A stored tensor's
/// boxes are the products of its dimensions' runs.
///
/// Concatenation, groups and sharding produce runs of step 1. A rotary permutation produces two runs of step 2 per
/// head, so that no box is a single row (transformers' convert_llama_weights_to_hf.py has the permutation as a view of
/// [heads, hd/2, 2, in] with the middle dimensions swapped).
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "libshard/core/arena.h"
#include "libshard/map/documents/model_map.h"

namespace shard {

using Sizes = std::vector<std::int64_t>;

/// A box of a logical tensor, and the positions of its elements in a stored tensor. Along logical dimension d, element
/// i of the box is at begin[axis[d]] + i * step[d] of the stored tensor. In stored dimensions that are not the axis of
/// any d, it is at `begin`.
struct MapBox {
  std::uint32_t member = 0;  ///< Index in RuleTensors: stack position * segments + segment.
  Dims offsets, sizes;       ///< The box in the logical tensor.
  Dims begin;                ///< One number per stored dimension.
  Dims axis, step;           ///< One number per logical dimension.
};

/// The shapes of the logical tensors from which a rule builds stored tensors.
struct RuleTensors {
  std::size_t rule = 0;
  std::vector<Sizes> shapes;             ///< By segment.
  std::vector<std::int64_t> stack;       ///< The number of positions of each stacked index.
  std::optional<std::int64_t> padded{};  ///< The size to which a rule pads, if the stored tensor defines it.

  std::int64_t stacked() const;  ///< The number of all positions; 1 without a stack.
};

/// The tensor that one rank stores.
struct RankPart {
  Sizes shape;
  std::vector<MapBox> boxes;  ///< The boxes, without elements that are padding.
  bool has_padding = false;
  int padded_dim = 0;              ///< The dimension of the stored tensor.
  std::int64_t padding_begin = 0;  ///< A local position.
};

/// The part of the rank at `coordinate`. `stack_begin` and `stack_size` define the positions of each stacked index that
/// it has. Dims are allocated in `arena`.
/// \throws Error kInvalidArgument  sharding, a group or heads do not divide a size; segments differ in dimensions other
///   than the concatenated one; sizes differ from the document's.
/// \throws Error kUnsupported      more than 2^20 boxes.
RankPart part_of_rank(const ModelMap& map, const RuleTensors& tensors, std::span<const std::int64_t> coordinate,
                      std::span<const std::int64_t> stack_begin, std::span<const std::int64_t> stack_size,
                      Arena& arena);

/// The padding of a stored tensor, as a separate box. \pre it has some
MapBox padding_box(const RankPart& part, Arena& arena);
/// A run of a one-dimensional stored tensor, as a separate box.
MapBox run_box(std::int64_t begin, std::int64_t count, Arena& arena);

/// A segment's shape after its permutation. Also converts back, because such permutations are their own inverse.
/// \throws Error kInvalidArgument  fewer than two dimensions to transpose
Sizes permuted(const MapPermute& permute, Sizes shape, const std::string& where);

/// Whether the rank at `coordinate` has tensors of the rule.
bool is_on(const ModelMap& map, const MapRule& rule, std::span<const std::int64_t> coordinate);

}  // namespace shard
