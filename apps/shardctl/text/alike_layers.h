/// \file
/// Tensors of layers that are alike, joined to one line: `layers.{0..31}.mlp.weight` for 32 of them.
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
  std::uint32_t kind;  ///< Equal for tensors that may share a line.
};

/// Tensors that share a line.
struct LayerLine {
  std::string name;                    ///< With "{first..last}" in place of numbers that are a full run.
  std::vector<std::uint32_t> members;  ///< Indices into the tensors, ascending by the numbers in their names.
};

/// Joins tensors of one kind whose names differ only in parts (between dots) that are decimal numbers: first in the
/// last such part, then in the one before it, and so on, so that `layers.0.experts.0.w` to `layers.3.experts.7.w`
/// become `layers.{0..3}.experts.{0..7}.w`. Numbers with a gap between them make a line for each run. \returns lines in
/// the order of their first tensors. Cost: n log n, for each number in the longest name.
std::vector<LayerLine> join_alike_layers(std::span<const LayerTensor> tensors);

}  // namespace shard::app
