/// \file
/// The index arithmetic of one rule: which boxes of its logical tensors one rank stores where.
///
/// Along each dimension a stored tensor is a list of *runs*: logical positions [logical, logical + length) of a segment
/// lie at local positions local, local + step, ... What no run covers is padding. A stored tensor's boxes are the
/// products of its dimensions' runs. Concatenation, groups and cuts make runs of step 1; a rotary permutation makes of
/// each head two runs of step 2, so that no box is a single row (transformers' convert_llama_weights_to_hf.py has the
/// permutation as a view of [heads, hd/2, 2, in] with the middle dimensions swapped).
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

/// A box of a logical tensor and where its elements lie in a stored one: along logical dimension d the element i of the
/// box is at begin[axis[d]] + i * step[d] of the stored tensor, in stored dimensions that no d has at `begin`.
struct MapBox {
  std::uint32_t member = 0;  ///< Of RuleTensors: stack position * segments + segment.
  Dims offsets, sizes;       ///< In the logical tensor.
  Dims begin;                ///< One a stored dimension.
  Dims axis, step;           ///< One a logical dimension.
};

/// The logical tensors that a rule makes stored tensors of, by their shapes.
struct RuleTensors {
  std::size_t rule = 0;
  std::vector<Sizes> shapes;             ///< By segment.
  std::vector<std::int64_t> stack;       ///< The number of positions of each stacked index.
  std::optional<std::int64_t> padded{};  ///< What a rule pads to, where the stored tensor says it and not the document.

  std::int64_t stacked() const;  ///< Positions in all; 1 without a stack.
};

/// What one rank stores.
struct RankPart {
  Sizes shape;
  std::vector<MapBox> boxes;  ///< Without elements that are padding.
  bool has_padding = false;
  int padded_dim = 0;              ///< Of the stored tensor.
  std::int64_t padding_begin = 0;  ///< Local.
};

/// The part of the rank at `coordinate`. `stack_begin` and `stack_size` say which positions of each stacked index it
/// holds. Dims lie in `arena`.
/// \throws Error kInvalidArgument  a size that a cut, a group or heads do not divide, segments that differ in other
///   dimensions than the concatenated one, sizes that differ from the document's.
/// \throws Error kUnsupported      more than 2^20 boxes.
RankPart part_of_rank(const ModelMap& map, const RuleTensors& tensors, std::span<const std::int64_t> coordinate,
                      std::span<const std::int64_t> stack_begin, std::span<const std::int64_t> stack_size,
                      Arena& arena);

/// What of a stored tensor is padding, as a box of its own. \pre it has some
MapBox padding_box(const RankPart& part, Arena& arena);
/// A run of a stored tensor of one dimension, as a box of its own.
MapBox run_box(std::int64_t begin, std::int64_t count, Arena& arena);

/// A segment's shape after its permutation, or before it from the one after: those that change shapes are their own
/// inverse. \throws Error kInvalidArgument  fewer than two dimensions to transpose
Sizes permuted(const MapPermute& permute, Sizes shape, const std::string& where);

/// Whether the rank at `coordinate` holds tensors of the rule.
bool is_on(const ModelMap& map, const MapRule& rule, std::span<const std::int64_t> coordinate);

}  // namespace shard
