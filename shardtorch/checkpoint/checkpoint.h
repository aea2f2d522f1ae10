/// \file Checkpoints of sharded state. All ranks write one folder together. Any number of ranks can read their parts.
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

/// Called by one worker at a time, with the number of bytes that this rank has done. Exceptions end the call on all.
using OnProgress = std::function<void(std::int64_t done_bytes, std::int64_t total_bytes)>;

struct SaveOptions {
  std::string format = "dcp";                ///< "dcp", "dcp-hf" or "torch-ranks".
  bool force = false;                        ///< Replace an existing checkpoint.
  bool sync = true;                          ///< Make it durable before it is visible.
  int threads = 1;                           ///< Threads per rank. A host usually has several ranks.
  std::int64_t max_memory_bytes = 64 << 20;  ///< Memory per rank for buffers.
  LocalDisk* disk = &posix_disk();           ///< The disk of `path`; must outlive the call.
  OnProgress on_progress{};                  ///< May be empty.
  std::stop_token stop{};                    ///< A stop ends the call on all ranks, before the commit.
};

/// Writes `state` of all ranks of `group` (null: the default group) into the folder `path`. Every rank writes its own
/// shards. One of their ranks writes each plain tensor, which is equal on all ranks, so that all ranks write about the
/// same number of bytes. Rank 0 writes objects (the lowest rank's) and the metadata, and commits. The folder becomes
/// visible completely or not at all. Real torch.distributed.checkpoint loads a dcp folder. Files of torch-ranks contain
/// DTensors if all sharded tensors are DTensors on meshes of all ranks, otherwise ShardedTensors, which have no
/// replicas. A collective.
/// Memory: no copy of contiguous CPU tensors; others, and those on GPUs, go through buffers of 4 MiB per thread (pinned
/// for GPUs), after the GPU's pending work.
/// Cost: each rank's description of its state, without elements, goes to all.
/// \throws shard::Error  the same on all ranks: kInvalidArgument  ranks contradict one another (plain tensors of
///   different shapes, shards that overlap or leave gaps, different arguments), or a local tensor contradicts its
///   metadata; kExists; kResource; kUnsupported  the format cannot store a value, by name; kInterrupted  a stop was
///   requested; kPeer. c10::ValueError  this process is not a member.
void save(const StateDict& state, const std::string& path, ProcessGroupPtr group = nullptr,
          const SaveOptions& options = {});

/// Maps a name of the state to the checkpoint's name.
using Rename = std::function<std::string(const std::string& name)>;

struct LoadOptions {
  bool strict = true;  ///< Names that the checkpoint lacks are an error. Otherwise they do not change and are returned.
  bool cast = false;  ///< Tensors of a different dtype are converted, as Tensor.to() does. Otherwise they are an error.
  Rename rename{};    ///< Empty: the same names.
  int threads = 2;
  std::int64_t max_memory_bytes = 64 << 20;
  const SourceStore* store = &posix_disk();  ///< The store of `path`; must outlive the call.
  OnProgress on_progress{};                  ///< May be empty.
  std::stop_token stop{};                    ///< A stop ends the call on all ranks. Tensors may then be partly filled.
};
struct LoadResult {
  std::vector<std::string> missing;  ///< Names of `state` that the checkpoint lacks.
  /// Names of the checkpoint, as stored, that match no name of `state`; without those of only other ranks.
  std::vector<std::string> unexpected;
  std::int64_t bytes_read = 0;  ///< Bytes that this rank read from tensor files: elements, and small gaps between them.
};

/// Fills the tensors of `state` in place from the checkpoint at `path`, in any format that shardctl reads, saved by any
/// number of ranks under any sharding. Each rank reads only the bytes of its own shards and of plain tensors, onto
/// their devices. Other values are replaced by the checkpoint's. Dicts, lists and tuples are entered if they contain a
/// tensor. Names are keys and indices joined by dots. The result is the same on all ranks. An error before elements are
/// read changes nothing. A collective.
/// Memory: as save. If several names have one memory, only one of them is read into it, and the others first into
/// separate memory.
/// \throws shard::Error  kNotFound  no checkpoint there, or it lacks a name; kCorruption; kInvalidArgument  a shape or
///   dtype differs, naming tensor, found and expected, a tensor in place of an object, or elements of a tensor to fill
///   share memory; kUnsupported  a tensor that cannot be filled (sparse, meta), or an operation that the format does
///   not allow; kInterrupted  a stop was requested; kPeer. c10::ValueError  this process is not a member.
LoadResult load(StateDict& state, const std::string& path, ProcessGroupPtr group = nullptr,
                const LoadOptions& options = {});
/// Loads into a module's parameters, buffers and sharded attributes, from the part of the checkpoint whose names begin
/// with `prefix` and a dot (empty: the whole checkpoint). The module's `weight` is stored as `<prefix>.weight`, or
/// under the name to which `options.rename` maps this name. Without such a renaming, `unexpected` lists only names in
/// that part.
LoadResult load(torch::nn::Module& module, const std::string& path, const std::string& prefix = "",
                ProcessGroupPtr group = nullptr, const LoadOptions& options = {});

}  // namespace shard::checkpoint
