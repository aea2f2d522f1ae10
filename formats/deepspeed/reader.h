/// \file
/// Opens a DeepSpeed save: the files of model and optimizer states of ZeRO stages 0 to 3, or a universal checkpoint
/// made from them. Bytes, checks and refusals: README.md in this folder.
#pragma once

#include <memory>

#include "formats/format.h"

namespace shard::deepspeed {

/// True for a folder with DeepSpeed's files of states, and for one whose file `latest` names such a folder. Reads only
/// names.
bool detect(const Source& source);

/// Opens the save: reads the pickles of all files, without their tensors.
/// \throws Error kNotFound     the file of a rank is missing (with its name), or all files of optimizer states are.
/// \throws Error kCorruption   files contradict one another; with file, expected, found (kinds world_size_mismatch,
///   mixed_save, shape_mismatch, ...).
/// \throws Error kUnsupported  parallel models, pipelines, experts, offloaded tensors.
std::unique_ptr<Reader> open(const Source& source, const OpenOptions& options);

/// True for a universal checkpoint: a folder with zero/optimizer_state.pt, or one that the file `latest_universal`
/// names. Reads only names.
bool detect_universal(const Source& source);

/// Opens a universal checkpoint: a folder per parameter with its weight and states, whole. Reads the pickles of all
/// files, without their tensors. \throws Error  as open
std::unique_ptr<Reader> open_universal(const Source& source, const OpenOptions& options);

}  // namespace shard::deepspeed
