/// \file
/// Remote shards over torch's TensorPipe RPC: libshard_rpc.so. Only for ranks that are processes, because torch's RPC
/// exists once per process.
///
/// Order: all workers call init_rpc before or after init_process_group. At the end they call a barrier, shutdown_rpc
/// and destroy_process_group. A program without shutdown_rpc ends normally, with warnings from torch on stderr.
///
/// A fetch returns the tensor's current contents, so owners should not write to it at the same time. Shards are sent as
/// copies on the CPU. They are received on the CPU, or on the device from RpcOptions::device_maps; their placement
/// still names the owner's device. A shard can be fetched until its owner's ShardedTensor is destroyed. A later fetch,
/// or one from a dead worker, fails within the timeout, usually at once.
///
/// Messages use TensorPipe over TCP, for a trusted network. The agent serves only fetches of published shards, on four
/// threads. Sources: torch/csrc/distributed/rpc/tensorpipe_agent.h and rref_proto.h (torch 2.11).
#pragma once

#include <chrono>
#include <map>
#include <memory>
#include <string>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <unordered_map>

#include "shardtorch/sharded_tensor/rpc.h"

namespace shard {

struct RpcOptions {
  std::string name;  ///< "worker0"; unique for each worker.
  int rank = 0, world_size = 1;
  std::chrono::milliseconds timeout{60'000};  ///< The timeout of each fetch, and of waiting for workers.
  /// The device of this process for shards on each of a worker's devices, by worker name. Other shards go to the CPU.
  std::map<std::string, std::unordered_map<at::Device, at::Device>> device_maps{};
};

/// Starts this process's agent and makes it the current one (set_current_rpc_agent). All workers call it and connect
/// through `store`, whose keys should have their own prefix. The same store may be used again after shutdown_rpc.
/// Threads: one at a time calls init_rpc and shutdown_rpc. After an error there is none, and it may be called again.
/// \throws c10::Error  there is an agent already; a worker does not connect. c10::ValueError  rank, size or name
std::shared_ptr<RpcAgent> init_rpc(c10::intrusive_ptr<c10d::Store> store, const RpcOptions& options);
/// Waits for all workers, then ends the agent. Withdraws shards that are still published.
/// \throws c10::Error  a worker does not call it within the timeout (names the worker; the agent is ended anyway);
///   there is no agent.
void shutdown_rpc();

}  // namespace shard
