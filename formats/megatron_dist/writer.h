/// \file
/// Writes checkpoints that Megatron-core loads: dcp's files, the common data, metadata.json.
#pragma once

#include <memory>

#include "formats/format.h"
#include "libshard/checkpoint/writer.h"

namespace shard::megatron_dist {

/// Tensors go under their names. Objects named KEY/shard_OFFSET_SHAPE are items, all others the common data: an item,
/// or with options.common_file common.pt. \throws Error kInvalidArgument  a single file is asked for.
std::unique_ptr<Writer> make_writer(const WriteOptions& options);

}  // namespace shard::megatron_dist
