/// \file
/// Joins tensors of identical layers to one line: `layers.{0..31}.mlp.weight` for 32 of them.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace shard::app {

/// A tensor to list.
struct LayerTensor {
  std::string_view name;
  std::uint32_t kind;  ///< The same for tensors that may share a line.
};

/// Tensors that share a line.
struct LayerLine {
  std::string name;                    ///< Contains "{first..last}" instead of numbers that form a complete run.
  std::vector<std::uint32_t> members;  ///< Indices of the tensors, ascending by the numbers in their names.
};

/// Joins tensors of one kind whose names differ only in dotted parts that are decimal numbers. Joins by the last such
/// part first, then by the one before it, and so on, so that `layers.0.experts.0.w` to `layers.3.experts.7.w` become
/// `layers.{0..3}.experts.{0..7}.w`. A gap between numbers starts a new line. Only the last 8 numbers of a name count.
/// \returns lines in the order of their first tensors. Cost: O(n log n).
std::vector<LayerLine> join_alike_layers(std::span<const LayerTensor> tensors);

}  // namespace shard::app
