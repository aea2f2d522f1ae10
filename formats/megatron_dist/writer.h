/// \file
/// Writes checkpoints that Megatron-core loads: dcp's files, the common data, metadata.json.
#pragma once

#include <array>
#include <memory>
#include <string_view>

#include "formats/format.h"
#include "libshard/checkpoint/writer.h"

namespace shard::megatron_dist {

inline constexpr std::array<std::string_view, 2> kCoreVersions{"0.19", "0.18"};
/// Core up to 0.18 has the common data in common.pt, later ones in an item.
inline constexpr FormatOption kCoreVersion{"core-version", kCoreVersions,
                                           "megatron-dist: Megatron-core version to write for: 0.18 or 0.19 (default)",
                                           "megatron-dist"};

/// Tensors go under their names. Objects named KEY/shard_OFFSET_SHAPE are items, all others the common data: an item
/// or a file, by kCoreVersion.
std::unique_ptr<Writer> make_writer(const WriteOptions& options);

}  // namespace shard::megatron_dist
