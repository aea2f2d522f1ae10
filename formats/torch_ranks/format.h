/// \file
/// The torch-ranks format: its entry in the registry, and the functions behind it. README.md in this folder
/// documents bytes, limits and refusals.
#pragma once

#include <memory>

#include "formats/format.h"
#include "libshard/checkpoint/writer.h"

namespace shard {

extern const Format kTorchRanksFormat;

namespace torch_ranks {

// Opens torch-ranks: one torch.save file per rank, with ShardedTensors, DTensors or, with a layout document, plain
// slices.

/// True for several torch.save files without an index that contain the same names, for a folder of such files, and for
/// one file that contains a ShardedTensor or DTensor. Reads only the starts of the pickles, no tensors.
bool detect(const Source& source);

/// Opens and checks all files: every rank below the world size occurs once, and all files are from one save.
/// \throws Error kNotFound         a rank is missing; with its number.
/// \throws Error kCorruption       a rank occurs twice, files contradict one another, there are more files than ranks;
///   with file, expected, found (kinds rank_mismatch, world_size_mismatch, shape_mismatch, dtype_mismatch,
///   missing_file).
/// \throws Error kInvalidArgument  plain slices without a layout document; neither files nor names record the ranks.
/// \throws Error kUnsupported      Partial placements.
std::unique_ptr<Reader> open(const Source& source, const OpenOptions& options);

// Writes torch-ranks: `rank-00000-of-00004.pt` and so on, one file per rank. With plain slices, and if no
// tensor is sharded, also `layout.json`.

/// The content that the format can store, by WriteOptions::rank_files (default: ShardedTensors).
FormatTraits traits_for(const WriteOptions& options);

/// `place` throws kUnsupported for ShardedTensors with replicas, and for DTensors of boxes without a Sharding.
std::unique_ptr<Writer> make_writer(const WriteOptions& options);

}  // namespace torch_ranks

}  // namespace shard
