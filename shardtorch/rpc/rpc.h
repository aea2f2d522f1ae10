/// \file
/// Remote shards over torch's TensorPipe RPC: libshard_rpc.so. Processes only: torch's RPC is one per process.
///
/// Order: init_rpc before init_process_group or after, on all workers; at the end a barrier, then shutdown_rpc, then
/// destroy_process_group. A program that ends without shutdown_rpc ends, with warnings of torch's on stderr.
///
/// A fetch returns the tensor's current contents, so owners should not write to it at the same time. Shards travel as
/// copies on the CPU and arrive on the CPU, or on the device from RpcOptions::device_maps; their placement still names
/// the owner's device. A shard is reachable until its owner's ShardedTensor is destroyed. A later fetch, or one from a
/// dead worker, is an error within the timeout, mostly at once.
///
/// Messages are TensorPipe's, over TCP, for a trusted network; only fetches of published shards are served, on four
/// threads of the agent. Sources: torch/csrc/distributed/rpc/tensorpipe_agent.h and rref_proto.h (torch 2.11).
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
  std::chrono::milliseconds timeout{60'000};  ///< For each fetch, and for workers to come.
  /// By the name of a worker: this process's device for shards from its devices. Others arrive on the CPU.
  std::map<std::string, std::unordered_map<at::Device, at::Device>> device_maps{};
};

/// Starts this process's agent and makes it the current one (set_current_rpc_agent). All workers call it and connect
/// through `store`, whose keys should have their own prefix; the same store may be used again after shutdown_rpc.
/// Threads: one at a time calls init_rpc and shutdown_rpc. After an error there is no agent, and it may be called
/// again.
/// \throws c10::Error  there is an agent already; a worker does not connect. c10::ValueError  rank, size or name
std::shared_ptr<RpcAgent> init_rpc(c10::intrusive_ptr<c10d::Store> store, const RpcOptions& options);
/// Waits for all workers, then ends the agent. Published shards that are left are withdrawn.
/// \throws c10::Error  a worker does not come within the timeout, named; the agent is ended all the same. There is no
///   agent.
void shutdown_rpc();

}  // namespace shard
