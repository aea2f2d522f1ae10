/// \file
/// The safetensors Writer: one file, or a folder as Hugging Face lays it out. See README.md beside this file.
#pragma once

#include <memory>

#include "formats/format.h"
#include "libshard/checkpoint/writer.h"

namespace shard::safetensors {

/// `place` sets target.metadata["format"] to "pt" where it is absent, and "shardctl.aliases" where names share bytes in
/// the source. \throws Error kUnsupported (from place)  a dtype that safetensors lacks, a name that is not UTF-8 or is
/// "__metadata__", a header over 100,000,000 bytes; kInvalidArgument  several files for a single-file DST.
std::unique_ptr<Writer> make_writer(const WriteOptions& options);

}  // namespace shard::safetensors
