/// \file MapFlatten: the layout of tensors in flat buffers that a map document defines. docs/maps.md has every key.
///
/// Terms: a *local tensor* is the tensor that a rule produces for one rank. Buffers contain local tensors. They are
/// split over one axis of the mesh, over which no rule splits. The model's tensors and each state of an optimizer have
/// separate buffers, which are called a *family*.
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

/// The content and names of one family's buffers.
struct FlatFamily {
  std::string state;    ///< The optimizer's state. Empty: the model's tensors.
  NameTemplate stored;  ///< Has the placeholder {group}, and {bucket} if each bucket is a separate buffer.
};

struct MapFlatten {
  std::size_t axis = 0;  ///< Index into the mesh.
  FlatKind kind = FlatKind::kFsdp1;
  std::vector<FlatFamily> families{};
  /// Stored names in the order of the buffer. If an item has several names, they are repeated together for each number
  /// of their placeholders. Empty: sorted by name.
  std::vector<std::vector<NameTemplate>> order{};
  bool takes_param_shapes = false;  ///< Whether the checkpoint lists the groups and the order, see param_shapes.
  std::vector<std::vector<std::string>> param_shapes{};  ///< Stored names by group, in order and without duplicates.
  std::vector<std::string> groups{};                     ///< Patterns of stored names. Empty: all names form one group.
  Expression align{1};
  std::optional<Expression> bucket_size{};
  std::vector<std::string> bucket_ends{};  ///< Stored names that end a bucket.
  bool checks_padding = true;              ///< Padding that is read must be zeros, which are always written.
  /// Logical names and shapes of the tensors, for reading. The names may have placeholders of indices with a count.
  std::vector<std::pair<NameTemplate, std::vector<Expression>>> shapes{};
};

}  // namespace shard
