/// \file
/// Finds the files of a safetensors source: one file, several, a folder, or an index.
#pragma once

#include "formats/format.h"
#include "formats/parts/hf_index/indexed_folder.h"

namespace shard::safetensors {

/// \throws Error kNotFound    the folder contains no such file.
/// \throws Error kCorruption  the folder has several indexes, and none has the usual name.
hf_index::DataFiles find_tensor_files(const Source& source);

}  // namespace shard::safetensors
