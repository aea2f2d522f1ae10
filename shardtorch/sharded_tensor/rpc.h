/// \file
/// The RPC interface for remote shards, between ShardedTensor and libshard_rpc.so.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "libshard/ranks/group.h"
#include "shardtorch/sharded_tensor/shard.h"

namespace shard {

struct Worker {
  int id = 0;
  std::string name;
};

/// A shard on a different worker (torch's RRef to it). A value; copies refer to the same shard.
class RemoteShard {
 public:
  struct Source {
    virtual ~Source() = default;
    virtual Shard fetch() = 0;
  };
  RemoteShard(Worker owner, std::shared_ptr<Source> source) : owner_(std::move(owner)), source_(std::move(source)) {}

  const Worker& owner() const { return owner_; }
  /// Copies tensor and metadata to this worker; blocks. \throws c10::Error  the owner is gone or does not answer in
  /// time.
  Shard to_here() const { return source_->fetch(); }

 private:
  Worker owner_;
  std::shared_ptr<Source> source_;
};

/// One per process. Implementations: libshard_rpc.so (TensorPipe). Threads: any may call self, workers, publish,
/// withdraw, remote_shard and their results (to_here). Only one thread at a time calls all_gather, in the same order on
/// all workers.
class RpcAgent {
 public:
  virtual ~RpcAgent() = default;
  virtual Worker self() const = 0;
  virtual const std::vector<Worker>& workers() const = 0;  ///< All workers by id, including this one.
  /// Gathers bytes over all workers. Part i is from worker i. A collective. \throws c10::Error  a worker does not call
  /// it within the timeout.
  virtual std::vector<Bytes> all_gather(const Bytes& own) = 0;
  /// Makes `shard` available to other workers until `withdraw`. They find it by the returned bytes (remote_shard).
  virtual Bytes publish(const Shard& shard) = 0;
  virtual void withdraw(const Bytes& published) noexcept = 0;
  /// The shard that `publish` on worker `owner` returned as these bytes.
  virtual RemoteShard remote_shard(int owner, const Bytes& published) = 0;
};

/// The process's agent, null if there is none. Set by init_rpc (rpc/rpc.h), cleared by its shutdown. Threads: any.
std::shared_ptr<RpcAgent> current_rpc_agent();
void set_current_rpc_agent(std::shared_ptr<RpcAgent> agent);

}  // namespace shard
