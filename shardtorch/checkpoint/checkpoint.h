/// \file
/// Checkpoints of sharded state: all ranks write one folder together, and any ranks read what they need of one.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "libshard/io/local_disk.h"
#include "shardtorch/state/state_dict.h"

namespace shard::checkpoint {

struct SaveOptions {
  std::string format = "dcp";                ///< "dcp", "dcp-hf" or "torch-ranks".
  bool force = false;                        ///< Replace what is there.
  bool sync = true;                          ///< Make it durable before it is visible.
  int threads = 1;                           ///< Each rank's: a host usually has several ranks.
  std::int64_t max_memory_bytes = 64 << 20;  ///< Each rank's, for buffers.
  LocalDisk* disk = &posix_disk();           ///< Where `path` is; must outlive the call.
};

/// Writes `state` of all ranks of `group` (null: the default group) into the folder `path`: every rank its own shards,
/// the lowest rank that has them plain tensors and objects (equal on all ranks), rank 0 the metadata and the commit.
/// The folder is there completely or not at all. Real torch.distributed.checkpoint loads a dcp folder. A collective.
/// Memory: no copy of contiguous CPU tensors. Cost: each rank's description of its state, without elements, goes to
/// all. \throws shard::Error  the same on all ranks: kInvalidArgument  ranks contradict one another (plain tensors of
/// other
///   shapes, shards that overlap or leave gaps, other arguments), a local tensor is another than its metadata says, or
///   this process is not a member; kExists; kResource; kUnsupported  the format cannot hold a value, by name; kPeer
void save(const StateDict& state, const std::string& path, ProcessGroupPtr group = nullptr,
          const SaveOptions& options = {});

struct LoadOptions {
  bool strict = true;  ///< Names that the checkpoint lacks are an error; else they are left as they are and returned.
  int threads = 2;
  std::int64_t max_memory_bytes = 64 << 20;
  const SourceStore* store = &posix_disk();  ///< Where `path` is; must outlive the call.
};
struct LoadResult {
  std::vector<std::string> missing;  ///< Names of `state` that the checkpoint lacks.
  std::int64_t bytes_read = 0;       ///< What this rank read of tensors' files: elements, and small gaps between them.
};

/// Fills the tensors of `state` in place from the checkpoint at `path`, of any format that shardctl reads, saved by any
/// number of ranks under any sharding: each rank reads just the bytes of its own shards and of plain tensors. Other
/// values are replaced by the checkpoint's; dicts, lists and tuples are entered where they hold a tensor. Names are
/// keys and indices joined by dots. All ranks end alike; what fails before elements are read changes nothing. A
/// collective. \throws shard::Error  kNotFound  no checkpoint there, or it lacks a name; kCorruption; kInvalidArgument
/// a shape or dtype
///   differs, naming tensor, found and expected, a tensor stands where an object is wanted, or elements of one to fill
///   share their place; kUnsupported  a tensor that cannot be filled (sparse, meta), or what the format does not allow;
///   kPeer
LoadResult load(StateDict& state, const std::string& path, ProcessGroupPtr group = nullptr,
                const LoadOptions& options = {});

}  // namespace shard::checkpoint
