/// \file
/// The safetensors Writer: one file, or a folder in Hugging Face's layout. README.md in this folder documents it.
#pragma once

#include <memory>

#include "formats/format.h"
#include "libshard/checkpoint/writer.h"

namespace shard::safetensors {

/// Makes the writer. `place` sets target.metadata["format"] to "pt" if it is missing, and "shardctl.aliases" if names
/// share bytes in the source. \throws Error kUnsupported (from place)  a dtype that safetensors lacks, a name that is
/// not UTF-8 or is "__metadata__", a header over 100,000,000 bytes; kInvalidArgument  several files for a single-file
/// DST.
std::unique_ptr<Writer> make_writer(const WriteOptions& options);

}  // namespace shard::safetensors
