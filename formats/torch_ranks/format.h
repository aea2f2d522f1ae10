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

// Writes torch-ranks: `rank-00000-of-00004.pt` and so on, one file per rank. With plain slices, and if no
// tensor is sharded, also `layout.json`.

/// The content that the format can store, by WriteOptions::rank_files (default: ShardedTensors).
FormatTraits traits_for(const WriteOptions& options);

/// `place` throws kUnsupported for ShardedTensors with replicas, and for DTensors of boxes without a Sharding.
std::unique_ptr<Writer> make_writer(const WriteOptions& options);

}  // namespace torch_ranks

}  // namespace shard
