/// \file
/// Writes torch-ranks: `rank-00000-of-00004.pt` and so on, one file per rank. With plain slices, and if no tensor is
/// sharded, also `layout.json`.
#pragma once

#include <memory>

#include "formats/format.h"
#include "libshard/checkpoint/writer.h"

namespace shard::torch_ranks {

/// The content that the format can store, by WriteOptions::rank_files (default: ShardedTensors).
FormatTraits traits_for(const WriteOptions& options);

/// `place` throws kUnsupported for replicas of sharded tensors as ShardedTensor, and for boxes without a Sharding as
/// DTensor.
std::unique_ptr<Writer> make_writer(const WriteOptions& options);

}  // namespace shard::torch_ranks
