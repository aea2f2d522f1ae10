/// \file
/// `storage_data` of `.metadata`: which item each chunk and object has.
#pragma once

#include <cstdint>
#include <string_view>

#include "formats/dcp/metadata.h"
#include "formats/dcp/metadata_classes.h"
#include "libshard/core/hash_table.h"

namespace shard::dcp {

/// Where a name of the state dict leads.
struct Target {
  std::uint32_t index;  ///< Into Metadata::objects or Metadata::tensors.
  bool is_object;
};
using Targets = HashMap<std::string_view, Target>;

/// Gives every chunk and object of `metadata` its item; chunks that need none of their own are left out.
///
/// storage_data's keys name a tensor's chunks by where they begin. Chunks that begin at one corner therefore share one
/// place: equal boxes are replicas, and of an empty and a full one it is the full one's.
/// \throws Error kCorruption, kUnsupported  see parse_metadata. Cost: one hash look-up per item.
/// Sizes go into `arena`.
void read_storage_data(Arena& arena, MetadataClasses& classes, const Value& storage_data, const Targets& targets,
                       Metadata& metadata);

}  // namespace shard::dcp
