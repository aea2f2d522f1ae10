/// \file
/// The dcp-hf Writer: a folder of shards that torch's HuggingFaceStorageReader loads. See README.md beside this file.
#pragma once

#include <memory>

#include "formats/format.h"
#include "libshard/checkpoint/writer.h"

namespace shard::dcp_hf {

/// `place` sets target.metadata["format"] to "pt" where it is absent, and "shardctl.aliases" where names share bytes in
/// the source. \throws Error kUnsupported (from place)  what safetensors cannot hold, and several boxes of one tensor
/// on one rank.
std::unique_ptr<Writer> make_writer(const WriteOptions& options);

}  // namespace shard::dcp_hf
