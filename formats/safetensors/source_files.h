/// \file
/// Which files a safetensors source consists of: one file, several, a folder, or an index.
#pragma once

#include "formats/format.h"
#include "formats/parts/hf_index/indexed_folder.h"

namespace shard::safetensors {

/// \throws Error kNotFound    the folder holds none.
/// \throws Error kCorruption  several indices and none of the usual name.
hf_index::DataFiles find_tensor_files(const Source& source);

}  // namespace shard::safetensors
