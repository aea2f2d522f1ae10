/// \file
/// The entries of deepspeed and deepspeed-universal in the registry. README.md in this folder documents bytes, limits
/// and refusals.
#pragma once

#include <memory>

#include "formats/format.h"

namespace shard {

extern const Format kDeepSpeedFormat;
extern const Format kDeepSpeedUniversalFormat;

namespace deepspeed {

/// Whether a reader is to read the module's 16-bit copies of parameters instead of the optimizer's master weights.
bool wants_module(const OpenOptions& options);

// Opens a DeepSpeed save: the files of model and optimizer states of ZeRO stages 0 to 3, or a universal checkpoint
// converted from them.

/// True for a folder with DeepSpeed's files of states, or whose file `latest` names such a folder. Reads only names.
bool detect(const Source& source);

/// Opens the save: reads the pickles of all files, without their tensors.
/// \throws Error kNotFound     the file of a rank is missing (with its name), or all files of optimizer states are.
/// \throws Error kCorruption   files contradict one another; with file, expected, found (kinds world_size_mismatch,
///   mixed_save, shape_mismatch, ...).
/// \throws Error kUnsupported  parallel models without rules, AutoEP, offloaded tensors.
std::unique_ptr<Reader> open(const Source& source, const OpenOptions& options);

/// True for a universal checkpoint: a folder with zero/optimizer_state.pt, or one that the file `latest_universal`
/// names. Reads only names.
bool detect_universal(const Source& source);

/// Opens a universal checkpoint: a folder per parameter with its weight and states, whole. Reads the pickles of all
/// files, without their tensors. \throws Error  as open
std::unique_ptr<Reader> open_universal(const Source& source, const OpenOptions& options);

// Writes a DeepSpeed save for a different number of data-parallel ranks, or as a universal checkpoint.

/// Lays out the same save for a different number of ranks. The stage, the forms and every object stay the same. The
/// result is a folder for the engine's load_checkpoint: `latest` and the folder of the tag.
/// \throws Error  as open; kUnsupported  see regroup (groups.h).
Rewrite repartition(const Source& source, const OpenOptions& open, const RewriteOptions& options);

/// Lays out a universal checkpoint: a folder per parameter, with whole tensors, independent of ranks. The result is a
/// folder for load_checkpoint with load_universal: `latest_universal` and the folder of the tag.
///
/// Source: deepspeed/checkpoint/ds_to_universal.py and universal_checkpoint.py of 0.18.2.
/// \throws Error  as open; kInvalidArgument  a number of ranks was given; kUnsupported  a save without ZeRO
///   or with a list of lean states; a name that is not valid for a folder.
Rewrite make_universal(const Source& source, const OpenOptions& open, const RewriteOptions& options);

}  // namespace deepspeed

}  // namespace shard
