/// \file
/// Opens a Megatron-LM save of `--ckpt-format torch`: a folder for each model-parallel rank. Bytes, checks and
/// refusals: README.md beside this file.
#pragma once

#include <memory>

#include "formats/format.h"

namespace shard::megatron {

/// A folder of mp_rank folders, or the folder above whose latest_checkpointed_iteration.txt names one. By names alone.
bool detect(const Source& source);

/// Reads the pickles of all files, not their tensors.
/// \throws Error kNotFound     the folder of a rank, or its file, is missing, by name.
/// \throws Error kCorruption   folders or files that contradict one another (kinds extra_file, mixed_save,
///   world_size_mismatch, shape_mismatch, index_mismatch, gap, ...).
/// \throws Error kUnsupported  layers or tensors that nothing says how to join (README.md).
std::unique_ptr<Reader> open(const Source& source, const OpenOptions& options);

}  // namespace shard::megatron
