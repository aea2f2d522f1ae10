/// \file
/// The dcp-hf Writer: a folder of shards that torch's HuggingFaceStorageReader loads. README.md in this folder
/// documents it.
#pragma once

#include <memory>

#include "formats/format.h"
#include "libshard/checkpoint/writer.h"

namespace shard::dcp_hf {

/// Makes the writer. `place` sets target.metadata["format"] to "pt" if it is missing, and "shardctl.aliases" if names
/// share bytes in the source. \throws Error kUnsupported (from place)  tensors that safetensors cannot store; several
/// boxes of one tensor on one rank.
std::unique_ptr<Writer> make_writer(const WriteOptions& options);

}  // namespace shard::dcp_hf
