/// \file
/// The record that shardctl adds to torch's metadata in `__metadata__`, so that no loss stays unnoticed:
///
///     "shardctl.world_size": "4"               ranks of the layout
///     "shardctl.ranks": "0-2"                  ranks that have a file, as ranges
///     "shardctl.shapes": "{\"w\": [17, 16]}"   whole shapes of the file's sharded tensors; others are whole
///
/// The first two are the same in every file. torch and Hugging Face's libraries ignore them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "formats/dcp_hf/names.h"
#include "formats/safetensors/metadata.h"

namespace shard::dcp_hf {

using safetensors::kWorldSizeKey;
inline constexpr const char* kRanksKey = "shardctl.ranks";
inline constexpr const char* kShapesKey = "shardctl.shapes";

struct Recorded {
  std::int64_t world_size = 0;
  NumberRuns ranks;
  std::string shapes;  ///< JSON text, different in each file.
};

void record(const Recorded& recorded, safetensors::MetadataMap& metadata);

/// Removes the three keys from `metadata`. \returns nothing if none exists, because shardctl did not write the file.
/// \throws Error kCorruption (kind bad_header)  some of them are missing, or have a different form.
std::optional<Recorded> take_recorded(safetensors::MetadataMap& metadata, const std::string& file);

}  // namespace shard::dcp_hf
