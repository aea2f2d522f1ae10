/// \file
/// Opens torch-ranks: one torch.save file per rank, that hold ShardedTensors, DTensors or, with a layout document,
/// plain slices. Bytes, checks and refusals: README.md beside this file.
#pragma once

#include <memory>

#include "formats/format.h"

namespace shard::torch_ranks {

/// Several torch.save files without an index that hold the same names, a folder of such, or one file in which a
/// ShardedTensor or DTensor lies. Reads the pickles' beginnings, not their tensors.
bool detect(const Source& source);

/// Opens and checks all files: every rank from 0 to the world size less one, once, all of one save.
/// \throws Error kNotFound         a rank is missing, by number.
/// \throws Error kCorruption       a rank twice, files that contradict one another, more files than ranks: file,
///   expected, found (kinds rank_mismatch, world_size_mismatch, shape_mismatch, dtype_mismatch, missing_file).
/// \throws Error kInvalidArgument  plain slices without a layout document; ranks that no file and no name tells.
/// \throws Error kUnsupported      Partial placements.
std::unique_ptr<Reader> open(const Source& source, const OpenOptions& options);

}  // namespace shard::torch_ranks
