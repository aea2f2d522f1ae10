/// \file
/// Writes torch-ranks: `rank-00000-of-00004.pt` and so on, one file for every rank; with plain slices,
/// and where nothing is cut, also `layout.json`.
#pragma once

#include <memory>

#include "formats/format.h"
#include "libshard/checkpoint/writer.h"

namespace shard::torch_ranks {

/// What the format can hold, by WriteOptions::rank_files (default: ShardedTensors).
FormatTraits traits_for(const WriteOptions& options);

/// `place` throws kUnsupported for replicas of cut tensors as ShardedTensor and for boxes without a Sharding as
/// DTensor.
std::unique_ptr<Writer> make_writer(const WriteOptions& options);

}  // namespace shard::torch_ranks
