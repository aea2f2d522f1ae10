/// \file
/// State dicts of modules with ShardedTensors, and one rank's state as a file that Python's torch.load reads.
///
/// Source of the keys: state_dict_hook and pre_load_state_dict_hook of torch/distributed/_shard/sharded_tensor (2.11).
#pragma once

#include <ATen/core/ivalue.h>
#include <torch/nn/module.h>
#include <torch/ordered_dict.h>

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "libshard/io/local_disk.h"
#include "shardtorch/sharded_tensor/sharded_tensor.h"

namespace shard {

/// Names to values: tensors, ShardedTensors (as_tensor()), None, bool, int, double, complex, string, lists, tuples and
/// dicts of these (keys: string, int, double, bool).
using StateDict = torch::OrderedDict<std::string, c10::IValue>;

/// Adds every sharded attribute (ShardedAttributes) of `module` and its submodules, under prefix, path and name joined
/// by dots. Ignores modules without such attributes.
void state_dict_hook(const torch::nn::Module& module, StateDict& destination, const std::string& prefix = "");
/// Sets every sharded attribute, even an empty one, whose key has a ShardedTensor in `state`.
void pre_load_state_dict_hook(torch::nn::Module& module, const StateDict& state, const std::string& prefix = "");

/// Parameters and buffers by name, and the additions of state_dict_hook. Values are shared with the module.
StateDict state_dict(const torch::nn::Module& module, const std::string& prefix = "");

struct LoadStateResult {
  std::vector<std::string> missing_keys, unexpected_keys;
};
/// Runs pre_load_state_dict_hook, then copies tensors into parameters and buffers; into a sharded parameter shard by
/// shard. If it throws, nothing has changed.
/// \throws c10::Error  all mismatches, in one text like Python's: missing or unexpected keys (`strict`), values that
///   are not tensors, sizes and boxes of shards that differ.
LoadStateResult load_state_dict(torch::nn::Module& module, const StateDict& state, bool strict = true);

/// This rank's part of `state` as a torch.save file, which Python's torch.load (weights_only=False, under
/// load_with_process_group) reads. A ShardedTensor is written with its local shards, metadata, spec and with this rank
/// and size in its group and in the default group; a tensor with its device and its storage, whole, once for all
/// tensors that share it. Tensors and containers under several names remain one.
/// \throws Error kUnsupported  a value that cannot be pickled: Error::tensor() is its path ("model.3.weight"). It is
///   undefined, sparse, quantized, without storage, or a second tensor uses its storage with a different dtype.
/// \throws c10::ValueError  a ShardedTensor, and there is no default group.
/// Cost: the bytes of the storages, copied once. Those on a GPU are in host memory one at a time.
std::string save_state(const StateDict& state);
/// Writes this to a file, atomically. Storages on the CPU are written directly.
/// \throws Error kResource, kExists
void save_state_file(const StateDict& state, const std::string& path, bool force = false,
                     LocalDisk& disk = posix_disk());

/// Returns the new device for a saved device, as torch.load's map_location; also applied to placements of all ranks.
/// Empty: devices do not change.
using MapLocation = std::function<at::Device(at::Device saved)>;

/// Reads a file of save_state or Python's torch.save from this rank. Every ShardedTensor gets the group of
/// LoadWithProcessGroup, or else the default group, and must have been saved under the same ranks and sizes. Loading is
/// collective if a tensor was created with init_rrefs. All workers then load together. If one of them throws before
/// that, the others wait for it until the RPC's timeout. Tensors go to the device from `map_location`; Parameters are
/// tensors, OrderedDicts are dicts, a torch.Size is a tuple. Nothing in the file is executed.
/// \throws c10::Error  "Need to initialize default process group ...", "Local rank at save time was 1, but at load time
///   was 0", and the same of global rank, local and global world size, in this order; a tensor of a CUDA device without
///   CUDA.
/// \throws Error kCorruption  a damaged file; kUnsupported  a value that a StateDict cannot contain, named as in
///   save_state; kNotFound
/// Cost: each storage is read once into the memory of its tensors.
StateDict load_state(std::string_view bytes, MapLocation map_location = {});
StateDict load_state_file(const std::string& path, const SourceStore& store = posix_disk(),
                          MapLocation map_location = {});

/// While it exists, ShardedTensors are loaded into `group`. Process-wide, not per thread.
class LoadWithProcessGroup {
 public:
  /// \throws c10::Error  "ProcessGroup already set by previous "load_with_process_group" context manager".
  explicit LoadWithProcessGroup(ProcessGroupPtr group);
  ~LoadWithProcessGroup();
  LoadWithProcessGroup(const LoadWithProcessGroup&) = delete;
  LoadWithProcessGroup& operator=(const LoadWithProcessGroup&) = delete;
};
/// The current group for loading ShardedTensors. \throws c10::ValueError  there is no default group either.
ProcessGroupPtr current_load_group();

}  // namespace shard
