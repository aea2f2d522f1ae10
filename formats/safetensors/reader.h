/// \file
/// Recognises and opens safetensors checkpoints. Bytes, limits and refusals: README.md beside this file.
#pragma once

#include <memory>

#include "formats/format.h"

namespace shard::safetensors {

/// Safetensors files of whole tensors, or an index of such: see Format::detect.
bool detect(const Source& source);

/// Opens one file, several, a folder with or without index, or an index.
/// \throws Error kCorruption, kNotFound, kUnsupported  see parse_header and read_weight_map; besides kCorruption of
///   kind index_mismatch (the index names a tensor that its file lacks) and duplicate_name (a tensor twice),
///   kUnsupported for shards of dcp-hf.
std::unique_ptr<Reader> open(const Source& source, const OpenOptions& options);

}  // namespace shard::safetensors
