/// \file
/// MapFlatten: how a map document lays tensors in flat buffers. docs/maps.md has every key.
///
/// Terms: a *local tensor* is what a rule makes for one rank. Buffers hold local tensors; they are cut over one axis of
/// the mesh, over which no rule cuts. The model's tensors and each state of an optimizer have buffers of their own,
/// which are called a *family*.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "libshard/map/documents/expression.h"
#include "libshard/map/documents/name_template.h"

namespace shard {

enum class FlatKind : std::uint8_t { kZero12, kZero3, kFsdp1, kMcoreBucket };  ///< See FlatRule in flat_buffer.h.

/// What buffers hold, and their names.
struct FlatFamily {
  std::string state;    ///< The optimizer's, or empty: the model's tensors.
  NameTemplate stored;  ///< With the placeholders {group} and, where each bucket is a buffer, {bucket}.
};

struct MapFlatten {
  std::size_t axis = 0;  ///< Index into the mesh.
  FlatKind kind = FlatKind::kFsdp1;
  std::vector<FlatFamily> families{};
  /// Stored names in their order; several in one item are repeated for each number of their placeholders. None: by
  /// name.
  std::vector<std::vector<NameTemplate>> order{};
  bool takes_param_shapes = false;  ///< Groups and order are what the checkpoint lists, see param_shapes.
  std::vector<std::vector<std::string>> param_shapes{};  ///< Stored names by group, in their order, each once.
  std::vector<std::string> groups{};                     ///< Patterns of stored names; none: all are one group.
  Expression align{1};
  std::optional<Expression> bucket_size{};
  std::vector<std::string> bucket_ends{};  ///< Stored names with which a bucket ends.
  bool checks_padding = true;              ///< Zeros are expected, and else anything. Zeros are made.
  /// Logical names and shapes of the tensors, for undoing; with placeholders of indices that have a count.
  std::vector<std::pair<NameTemplate, std::vector<Expression>>> shapes{};
};

}  // namespace shard
