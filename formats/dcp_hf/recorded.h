/// \file
/// What files written here say besides what torch writes, in `__metadata__`, so that nothing of them can be lost
/// unseen:
///
///     "shardctl.world_size": "4"               ranks of the layout
///     "shardctl.ranks": "0-2"                  ranks that have a file, as ranges
///     "shardctl.shapes": "{\"w\": [17, 16]}"   whole shapes of the file's tensors that are cut; others are whole
///
/// The first two are the same in every file. torch and Hugging Face's libraries do not look at them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "formats/dcp_hf/names.h"
#include "formats/safetensors/metadata.h"

namespace shard::dcp_hf {

inline constexpr const char* kWorldSizeKey = "shardctl.world_size";
inline constexpr const char* kRanksKey = "shardctl.ranks";
inline constexpr const char* kShapesKey = "shardctl.shapes";

struct Recorded {
  std::int64_t world_size = 0;
  NumberRuns ranks;
  std::string shapes;  ///< JSON text, this file's own.
};

void record(const Recorded& recorded, safetensors::MetadataMap& metadata);

/// Takes the three keys out of `metadata`. \returns nothing when none is there: a file of others.
/// \throws Error kCorruption (kind bad_header)  not all three, or not of that form.
std::optional<Recorded> take_recorded(safetensors::MetadataMap& metadata, const std::string& file);

}  // namespace shard::dcp_hf
