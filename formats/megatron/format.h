/// \file
/// The megatron format: its entry in the registry, and the functions behind it. README.md in this folder documents
/// bytes, limits and refusals.
#pragma once

#include <memory>

#include "formats/format.h"

namespace shard {

extern const Format kMegatronFormat;

namespace megatron {

// Opens a Megatron-LM save of `--ckpt-format torch`: a folder per model-parallel rank.

/// True for a folder of mp_rank folders, and for the one above it whose latest_checkpointed_iteration.txt names it.
/// Reads only names.
bool detect(const Source& source);

/// Opens the save: reads the pickles of all files, without their tensors.
/// \throws Error kNotFound     the folder of a rank, or its file, is missing; with its name.
/// \throws Error kCorruption   folders or files contradict one another (kinds extra_file, mixed_save,
///   world_size_mismatch, shape_mismatch, index_mismatch, gap, ...).
/// \throws Error kUnsupported  layers or tensors that cannot be joined without further information (README.md).
std::unique_ptr<Reader> open(const Source& source, const OpenOptions& options);

}  // namespace megatron

}  // namespace shard
