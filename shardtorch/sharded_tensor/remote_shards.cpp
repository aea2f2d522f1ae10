#include <mutex>
#include <set>
#include <utility>

#include "libshard/ranks/wire.h"
#include "shardtorch/errors.h"
#include "shardtorch/sharded_tensor/sharded_tensor_impl.h"

namespace shard {

namespace {

/// The tensors with remote shards in this process, and its agent. As in torch, there is one agent per process.
struct Process {
  std::mutex mutex;
  std::int64_t next_id = 0;  // Never reused.
  std::set<std::int64_t> tensors;
  std::shared_ptr<RpcAgent> agent;
};

Process& process() {
  // Never destroyed, because tensors may be destroyed after static objects.
  static Process* const instance = new Process;
  return *instance;
}

std::int64_t enter_registry() {
  const std::scoped_lock lock(process().mutex);
  const std::int64_t id = process().next_id++;
  process().tensors.insert(id);
  return id;
}

Bytes message_of(const std::vector<Bytes>& published) {
  WireWriter out;
  out.number(static_cast<std::int64_t>(published.size()));
  for (const Bytes& shard : published) out.text(as_text(shard));
  return out.take();
}

/// The shards of worker `owner` that `bytes` names.
std::vector<RemoteShard> remote_shards_of(RpcAgent& agent, int owner, const Bytes& bytes) {
  WireReader in(bytes);
  std::vector<RemoteShard> shards;
  for (std::int64_t left = in.number(); left > 0; --left) {
    shards.push_back(agent.remote_shard(owner, to_bytes(in.text())));
  }
  return shards;
}

/// Checks the agent. \throws c10::Error  no agent; c10::ValueError  the world's ranks are not the workers' ids.
std::shared_ptr<RpcAgent> checked_agent() {
  std::shared_ptr<RpcAgent> agent = current_rpc_agent();
  SHARD_CHECK(
      agent, "RPC Framework needs to be initialized using torch.distributed.rpc.init_rpc if init_rrefs is set to True");
  const int rank = default_group()->rank(), worker = agent->self().id;
  SHARD_CHECK_VALUE(rank == worker,
                    "Default ProcessGroup and RPC ranks must be the same for ShardedTensor, found process group rank: ",
                    rank, " and RPC rank: ", worker);
  return agent;
}

}  // namespace

std::shared_ptr<RpcAgent> current_rpc_agent() {
  const std::scoped_lock lock(process().mutex);
  return process().agent;
}

void set_current_rpc_agent(std::shared_ptr<RpcAgent> agent) {
  const std::scoped_lock lock(process().mutex);
  std::swap(process().agent, agent);  // The old agent is destroyed outside the lock.
}

std::size_t registered_sharded_tensors() {
  const std::scoped_lock lock(process().mutex);
  return process().tensors.size();
}

void init_remote_shards(const c10::intrusive_ptr<ShardedTensorImpl>& impl) {
  if (!impl->init_rrefs) return;
  impl->agent = checked_agent();
  impl->id = enter_registry();
  for (const Shard& shard : impl->local_shards) impl->published.push_back(impl->agent->publish(shard));
  const std::vector<Bytes> published = impl->agent->all_gather(message_of(impl->published));
  for (const Worker& worker : impl->agent->workers()) {
    if (worker.id == impl->agent->self().id) continue;
    auto shards = remote_shards_of(*impl->agent, worker.id, published.at(static_cast<std::size_t>(worker.id)));
    if (!shards.empty()) impl->remote_shards.emplace(worker.id, std::move(shards));
  }
}

void leave_registry(ShardedTensorImpl& impl) noexcept {
  if (!impl.id.has_value()) return;
  for (const Bytes& shard : impl.published) impl.agent->withdraw(shard);
  impl.published.clear();
  const std::scoped_lock lock(process().mutex);
  process().tensors.erase(*std::exchange(impl.id, std::nullopt));
}

const std::map<int, std::vector<RemoteShard>>& ShardedTensor::remote_shards() const {
  SHARD_CHECK(init_rrefs(), "ShardedTensor created with init_rrefs=False, no RRefs to remote shards available");
  return impl().remote_shards;
}

}  // namespace shard
