/// \file
/// Checkpoints of sharded state: all ranks write one folder together, and any ranks read what they need of one.
#pragma once

#include <torch/nn/module.h>

#include <cstdint>
#include <functional>
#include <stop_token>
#include <string>
#include <vector>

#include "libshard/io/local_disk.h"
#include "shardtorch/state/state_dict.h"

namespace shard::checkpoint {

/// Told by workers, one at a time, how many of this rank's bytes are done. What it throws ends the call on all ranks.
using OnProgress = std::function<void(std::int64_t done_bytes, std::int64_t total_bytes)>;

struct SaveOptions {
  std::string format = "dcp";                ///< "dcp", "dcp-hf" or "torch-ranks".
  bool force = false;                        ///< Replace what is there.
  bool sync = true;                          ///< Make it durable before it is visible.
  int threads = 1;                           ///< Each rank's: a host usually has several ranks.
  std::int64_t max_memory_bytes = 64 << 20;  ///< Each rank's, for buffers.
  LocalDisk* disk = &posix_disk();           ///< Where `path` is; must outlive the call.
  OnProgress on_progress{};                  ///< May be empty.
  std::stop_token stop{};                    ///< A stop ends the call on all ranks, before the commit.
};

/// Writes `state` of all ranks of `group` (null: the default group) into the folder `path`: every rank its own shards;
/// plain tensors, which are equal on all ranks, one of those that have them, so that all have about as much to write;
/// rank 0 objects (the lowest rank's), the metadata and the commit.
/// The folder is there completely or not at all. Real torch.distributed.checkpoint loads a dcp folder. Files of
/// torch-ranks hold DTensors where all that is cut are DTensors on meshes of all ranks, else ShardedTensors, which have
/// no replicas. A collective.
/// Memory: no copy of contiguous CPU tensors; others, and those on GPUs, go through buffers of 4 MiB a thread (pinned
/// for GPUs), after the GPU's pending work. Cost: each rank's description of its state, without elements, goes to all.
/// \throws shard::Error  the same on all ranks: kInvalidArgument  ranks contradict one another (plain tensors of other
///   shapes, shards that overlap or leave gaps, other arguments), a local tensor is another than its metadata says, or
///   this process is not a member; kExists; kResource; kUnsupported  the format cannot hold a value, by name;
///   kInterrupted  a stop was asked for; kPeer
void save(const StateDict& state, const std::string& path, ProcessGroupPtr group = nullptr,
          const SaveOptions& options = {});

/// What the checkpoint calls a name of the state.
using Rename = std::function<std::string(const std::string& name)>;

struct LoadOptions {
  bool strict = true;  ///< Names that the checkpoint lacks are an error; else they are left as they are and returned.
  bool cast = false;   ///< Tensors of another dtype are converted, as Tensor.to() does; else they are an error.
  Rename rename{};     ///< Empty: the same names.
  int threads = 2;
  std::int64_t max_memory_bytes = 64 << 20;
  const SourceStore* store = &posix_disk();  ///< Where `path` is; must outlive the call.
  OnProgress on_progress{};                  ///< May be empty.
  std::stop_token stop{};                    ///< A stop ends the call on all ranks; tensors may be half filled then.
};
struct LoadResult {
  std::vector<std::string> missing;  ///< Names of `state` that the checkpoint lacks.
  /// Names of the checkpoint, as stored, that no name of `state` stands for; without those of other ranks alone.
  std::vector<std::string> unexpected;
  std::int64_t bytes_read = 0;  ///< What this rank read of tensors' files: elements, and small gaps between them.
};

/// Fills the tensors of `state` in place from the checkpoint at `path`, of any format that shardctl reads, saved by any
/// number of ranks under any sharding: each rank reads just the bytes of its own shards and of plain tensors, onto the
/// devices where they are. Other values are replaced by the checkpoint's; dicts, lists and tuples are entered where
/// they hold a tensor. Names are keys and indices joined by dots. All ranks end alike; what fails before elements are
/// read changes nothing. A collective. Memory: as save; of several names of one memory all but one are read aside
/// first. \throws shard::Error  kNotFound  no checkpoint there, or it lacks a name; kCorruption; kInvalidArgument  a
/// shape or
///   dtype differs, naming tensor, found and expected, a tensor stands where an object is wanted, or elements of one to
///   fill share their place; kUnsupported  a tensor that cannot be filled (sparse, meta), or what the format does not
///   allow; kInterrupted  a stop was asked for; kPeer
LoadResult load(StateDict& state, const std::string& path, ProcessGroupPtr group = nullptr,
                const LoadOptions& options = {});
/// The same into a module's parameters, buffers and sharded attributes, from the part of the checkpoint whose names
/// begin with `prefix` and a dot (empty: all of it): its `weight` is stored as `<prefix>.weight`, or as what
/// `options.rename` makes of that. `unexpected` lists names of that part only, where there is no such renaming.
LoadResult load(torch::nn::Module& module, const std::string& path, const std::string& prefix = "",
                ProcessGroupPtr group = nullptr, const LoadOptions& options = {});

}  // namespace shard::checkpoint
