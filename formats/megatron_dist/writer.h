/// \file
/// Writes checkpoints that Megatron-Core loads: dcp's files, the common data, metadata.json.
#pragma once

#include <array>
#include <memory>
#include <string_view>

#include "formats/format.h"
#include "libshard/checkpoint/writer.h"

namespace shard::megatron_dist {

inline constexpr std::array<std::string_view, 2> kCoreVersions{"0.19", "0.18"};
/// Megatron-Core up to 0.18 stores the common data in common.pt, later versions in an item.
inline constexpr FormatOption kCoreVersion{"core-version", kCoreVersions,
                                           "megatron-dist: Megatron-core version to write for: 0.18 or 0.19 (default)",
                                           "megatron-dist"};

/// Tensors keep their names. An object named KEY/shard_OFFSET_SHAPE is an item. All other objects are common data,
/// stored in an item or in a file as kCoreVersion selects.
std::unique_ptr<Writer> make_writer(const WriteOptions& options);

}  // namespace shard::megatron_dist
