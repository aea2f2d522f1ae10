/// \file
/// The megatron-dist format: its entry in the registry, and the functions behind it. README.md in this folder
/// documents bytes, limits and refusals.
#pragma once

#include <array>
#include <memory>
#include <string_view>

#include "formats/format.h"
#include "libshard/checkpoint/writer.h"

namespace shard {

extern const Format kMegatronDistFormat;

namespace megatron_dist {

// Opens checkpoints of Megatron-Core's dist_checkpointing (torch_dist): dcp's files and further ones.

/// True for a folder whose metadata.json names torch_dist, and for a parent of such a folder: see find_checkpoint.
bool detect(const Source& source);

/// \throws Error kNotFound  the source does not contain a checkpoint. Other errors: as dcp::open.
std::unique_ptr<Reader> open(const Source& source, const OpenOptions& options);

// Writes checkpoints that Megatron-Core loads: dcp's files, the common data, metadata.json.

inline constexpr std::array<std::string_view, 2> kCoreVersions{"0.19", "0.18"};
/// Megatron-Core up to 0.18 stores the common data in common.pt, later versions in an item.
inline constexpr FormatOption kCoreVersion{"core-version", kCoreVersions,
                                           "megatron-dist: Megatron-Core version to write for: 0.18 or 0.19 (default)",
                                           "megatron-dist"};

/// Tensors keep their names. An object named KEY/shard_OFFSET_SHAPE is an item. All other objects are common data,
/// stored in an item or in a file as kCoreVersion selects.
std::unique_ptr<Writer> make_writer(const WriteOptions& options);

}  // namespace megatron_dist

}  // namespace shard
