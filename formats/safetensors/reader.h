/// \file
/// Recognises and opens safetensors checkpoints. README.md in this folder documents bytes, limits and refusals.
#pragma once

#include <memory>

#include "formats/format.h"

namespace shard::safetensors {

/// True for safetensors files of whole tensors, and for an index of such files: see Format::detect.
bool detect(const Source& source);

/// Opens one file, several files, a folder with or without an index, or an index.
/// \throws Error kCorruption, kNotFound, kUnsupported  see parse_header and read_weight_map. Also kCorruption of kind
///   index_mismatch (the index lists a tensor that its file lacks) and duplicate_name (a tensor occurs twice), and
///   kUnsupported for shards of dcp-hf.
std::unique_ptr<Reader> open(const Source& source, const OpenOptions& options);

}  // namespace shard::safetensors
