// Torch's TensorPipe agent moves the messages. The only request served here is torch's fetch of an RRef, whose number
// identifies a published shard. Torch's own callback would run any operator for any worker, and let a request for a
// shard that no longer exists wait for the whole timeout.
#include "shardtorch/rpc/rpc.h"

#include <ATen/ATen.h>
#include <c10/util/Exception.h>
#include <torch/csrc/distributed/rpc/request_callback.h>
#include <torch/csrc/distributed/rpc/rref_proto.h>
#include <torch/csrc/distributed/rpc/tensorpipe_agent.h>
#include <torch/csrc/distributed/rpc/utils.h>

#include <algorithm>
#include <atomic>
#include <mutex>
#include <span>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <vector>

#include "libshard/ranks/group.h"
#include "libshard/ranks/wire.h"
#include "shardtorch/c10d/without_sigpipe.h"
#include "shardtorch/errors.h"

namespace shard {

namespace {

// Exchanges bytes between workers through a store, before a process group exists or after its end.

/// All workers create one and call it in the same order. Threads: one at a time.
class Meeting {
 public:
  /// Opens a separate connection to the store. Keys begin with a number that is new for each Meeting of a worker, so a
  /// store may be used again.
  Meeting(c10d::Store& store, int rank, int size, std::chrono::milliseconds timeout);

  /// Part i of the result comes from worker i. Each call uses new keys. The last reader removes them.
  /// \throws c10::Error  "RPC: worker 2 did not connect within 2000 ms", or the store's own error.
  std::vector<Bytes> all_gather(std::span<const std::byte> own);
  void barrier() { all_gather({}); }
  /// Ends the meeting. Worker 0, whose process often has the store, waits for the last message of each other worker.
  /// \throws c10::Error  as all_gather, in worker 0.
  void leave();

  /// The store under this meeting's keys, for other users. It has the meeting's timeout.
  const c10::intrusive_ptr<c10d::Store>& store() const { return store_; }

 private:
  std::vector<std::string> keys_of(const std::string& step) const;
  void wait_for(const std::vector<std::string>& keys) const;

  int rank_, size_;
  std::chrono::milliseconds timeout_;
  c10::intrusive_ptr<c10d::Store> store_;
  int calls_ = 0;
};

std::vector<std::uint8_t> to_store(std::span<const std::byte> bytes) {
  const auto* const begin = reinterpret_cast<const std::uint8_t*>(bytes.data());
  return {begin, begin + bytes.size()};
}

Bytes from_store(const std::vector<std::uint8_t>& bytes) {
  const auto* const begin = reinterpret_cast<const std::byte*>(bytes.data());
  return {begin, begin + bytes.size()};
}

Meeting::Meeting(c10d::Store& store, int rank, int size, std::chrono::milliseconds timeout)
    : rank_(rank), size_(size), timeout_(timeout) {
  const std::int64_t number = store.add("meetings/" + std::to_string(rank), 1);
  store_ = c10::make_intrusive<c10d::PrefixStore>("meeting/" + std::to_string(number), store.clone());
  store_->setTimeout(timeout);
}

std::vector<std::string> Meeting::keys_of(const std::string& step) const {
  std::vector<std::string> keys;
  for (int worker = 0; worker < size_; ++worker) keys.push_back(step + "/" + std::to_string(worker));
  return keys;
}

void Meeting::wait_for(const std::vector<std::string>& keys) const {
  try {
    store_->wait(keys, timeout_);
  } catch (const c10::Error&) {
    std::string missing;
    for (std::size_t worker = 0; worker < keys.size(); ++worker) {
      if (!store_->check({keys[worker]})) missing += (missing.empty() ? "" : ", ") + std::to_string(worker);
    }
    if (missing.empty()) throw;
    const bool is_one = missing.find(',') == std::string::npos;
    SHARD_CHECK(false, is_one ? "RPC: worker " : "RPC: workers ", missing, " did not connect within ", timeout_.count(),
                " ms");
  }
}

std::vector<Bytes> Meeting::all_gather(std::span<const std::byte> own) {
  const std::string step = "gather/" + std::to_string(calls_++);
  const std::vector<std::string> keys = keys_of(step);
  store_->set(keys[static_cast<std::size_t>(rank_)], to_store(own));
  wait_for(keys);
  std::vector<Bytes> all;
  for (const std::string& key : keys) all.push_back(from_store(store_->get(key)));
  if (store_->add(step + "/read", 1) == size_) {
    for (const std::string& key : keys) store_->deleteKey(key);
    store_->deleteKey(step + "/read");
  }
  return all;
}

void Meeting::leave() {
  const std::vector<std::string> keys = keys_of("left");
  store_->set(keys[static_cast<std::size_t>(rank_)], to_store({}));
  if (rank_ == 0) wait_for(keys);
}

namespace torch_rpc = ::torch::distributed::rpc;
using torch_rpc::JitFuture;
using torch_rpc::Message;

constexpr int kThreads = 4;  // The threads serve fetches, which copy.

float seconds(std::chrono::milliseconds time) { return static_cast<float>(time.count()) / 1000; }

std::string first_line_of(const std::exception& error) {
  const std::string text = message_of(error);
  return text.substr(0, text.find('\n'));
}

/// Shards that others may fetch, by number. Threads: any.
class Shelf {
 public:
  std::int64_t put(const Shard& shard) {
    const std::lock_guard lock(mutex_);
    shards_.emplace(++last_, shard);
    return last_;
  }
  /// \throws c10::Error  the shard no longer exists.
  Shard look_up(std::int64_t number) const {
    const std::lock_guard lock(mutex_);
    const auto found = shards_.find(number);
    SHARD_CHECK(found != shards_.end(), "no shard is published as number ", number);
    return found->second;
  }
  void take(std::int64_t number) {
    const std::lock_guard lock(mutex_);
    shards_.erase(number);
  }
  void clear() {
    const std::lock_guard lock(mutex_);
    shards_.clear();
  }

 private:
  mutable std::mutex mutex_;
  std::int64_t last_ = 0;
  std::unordered_map<std::int64_t, Shard> shards_;
};

/// The value of a shard's RRef: its tensor on the CPU, and its metadata as text.
at::IValue to_value(const Shard& shard) {
  const ShardedTensorMetadata metadata{
      {shard.metadata}, shard.metadata.shard_sizes, TensorProperties::of(shard.tensor)};
  return c10::ivalue::Tuple::create({shard.tensor.detach().cpu(), serialize(metadata)});
}

Shard from_value(const at::IValue& value) {
  const auto& elements = value.toTupleRef().elements();
  const ShardedTensorMetadata metadata = deserialize_metadata(elements.at(1).toStringRef());
  const ShardMetadata& box = metadata.shards_metadata.at(0);
  const at::Tensor tensor = elements.at(0).toTensor().set_requires_grad(metadata.tensor_properties.requires_grad);
  Shard shard(tensor, ShardMetadata(box.shard_offsets, box.shard_sizes));
  shard.metadata.placement = box.placement;  // The owner's device, which is remote.
  return shard;
}

/// Answers fetches from the shelf, on the agent's threads.
class FetchCallback final : public torch_rpc::RequestCallback {
 public:
  explicit FetchCallback(std::shared_ptr<const Shelf> shelf) : shelf_(std::move(shelf)) {}

 private:
  c10::intrusive_ptr<JitFuture> processMessage(Message& request, std::vector<c10::Stream> /*streams*/) const override {
    auto future = c10::make_intrusive<JitFuture>(at::getCustomClassType<c10::intrusive_ptr<Message>>());
    c10::intrusive_ptr<Message> answer = answer_or_error(request);
    auto storages = answer->getStorages();
    future->markCompleted(std::move(answer), std::move(storages));
    return future;
  }

  c10::intrusive_ptr<Message> answer_or_error(const Message& request) const {
    try {
      SHARD_CHECK(request.type() == torch_rpc::SCRIPT_RREF_FETCH_CALL, "only shards can be fetched here");
      const auto call = torch_rpc::ScriptRRefFetchCall::fromMessage(request);
      const Shard shard = shelf_->look_up(call->rrefId().localId_);
      auto answer = torch_rpc::ScriptRRefFetchRet({to_value(shard)}).toMessage();
      answer->setId(request.id());
      return answer;
    } catch (const std::exception& error) {
      return torch_rpc::createExceptionResponse(first_line_of(error), request.id());
    }
  }

  std::shared_ptr<const Shelf> shelf_;
};

/// \throws c10::ValueError  a device map is for an unknown worker.
std::vector<Worker> gather_workers(Meeting& meeting, const RpcOptions& options) {
  std::vector<Worker> workers;
  for (const Bytes& name : meeting.all_gather(std::as_bytes(std::span(options.name)))) {
    const int id = static_cast<int>(workers.size());
    workers.push_back({id, std::string(as_text(name))});
  }
  for (const auto& [name, map] : options.device_maps) {
    SHARD_CHECK_VALUE(std::ranges::find(workers, name, &Worker::name) != workers.end(), "RPC: a device map is for '",
                      name, "', which is not the name of a worker");
  }
  return workers;
}

void end_agent(torch_rpc::RpcAgent& agent) {
  agent.shutdown();
  torch_rpc::RpcAgent::setCurrentRpcAgent(nullptr);
}

/// Torch's current agent once it runs; null if it cannot start.
std::shared_ptr<torch_rpc::TensorPipeAgent> start_agent(const Meeting& meeting, const RpcOptions& options,
                                                        std::shared_ptr<const Shelf> shelf) {
  const WithoutSigpipe in_all_its_threads;
  torch_rpc::TensorPipeRpcBackendOptions backend(kThreads, std::vector<std::string>{"uv"},
                                                 std::vector<std::string>{"basic"}, seconds(options.timeout), "");
  auto agent = std::make_shared<torch_rpc::TensorPipeAgent>(
      meeting.store(), options.name, static_cast<torch_rpc::worker_id_t>(options.rank), options.world_size,
      std::move(backend), std::unordered_map<std::string, torch_rpc::DeviceMap>{}, std::vector<c10::Device>{},
      std::make_unique<FetchCallback>(std::move(shelf)));
  agent->setTypeResolver(
      std::make_shared<torch_rpc::TypeResolver>([](const c10::QualifiedName& name) -> c10::StrongTypePtr {
        SHARD_CHECK(false, "RPC: a value of type ", name.qualifiedName(), " is not a shard");
      }));
  torch_rpc::RpcAgent::setCurrentRpcAgent(agent);  // Torch unpickles messages with the current agent's resolver.
  try {
    agent->start();
  } catch (...) {
    end_agent(*agent);
    throw;
  }
  return agent;
}

class TensorPipeRpc final : public RpcAgent, public std::enable_shared_from_this<TensorPipeRpc> {
 public:
  TensorPipeRpc(c10d::Store& store, const RpcOptions& options)
      : options_(options),
        meeting_(store, options.rank, options.world_size, options.timeout),
        workers_(gather_workers(meeting_, options)),
        agent_(start_agent(meeting_, options, shelf_)) {}
  /// Ends the agent in a program without shutdown_rpc.
  ~TensorPipeRpc() override { stop(); }
  TensorPipeRpc(const TensorPipeRpc&) = delete;
  TensorPipeRpc& operator=(const TensorPipeRpc&) = delete;

  Worker self() const override { return workers_[static_cast<std::size_t>(options_.rank)]; }
  const std::vector<Worker>& workers() const override { return workers_; }
  std::vector<Bytes> all_gather(const Bytes& own) override { return meeting_.all_gather(own); }
  Bytes publish(const Shard& shard) override;
  void withdraw(const Bytes& published) noexcept override;
  RemoteShard remote_shard(int owner, const Bytes& published) override;

  Shard fetch(const Worker& owner, std::int64_t number) const;
  /// Ends the agent together with all workers. \throws c10::Error  one does not connect; the agent is ended anyway.
  void shut_down();

 private:
  at::IValue request(const Worker& owner, std::int64_t number) const;
  /// The target device of the device map for shards on that device of `owner`.
  void bring(Shard& shard, const Worker& owner) const;
  void stop();

  RpcOptions options_;
  Meeting meeting_;
  std::vector<Worker> workers_;
  std::shared_ptr<Shelf> shelf_ = std::make_shared<Shelf>();
  std::shared_ptr<torch_rpc::TensorPipeAgent> agent_;
  std::atomic<bool> stopped_ = false;
};

/// A shard on another worker. It may outlive the time in which it can be fetched.
class Fetch final : public RemoteShard::Source {
 public:
  Fetch(std::shared_ptr<const TensorPipeRpc> rpc, Worker owner, std::int64_t number)
      : rpc_(std::move(rpc)), owner_(std::move(owner)), number_(number) {}
  Shard fetch() override { return rpc_->fetch(owner_, number_); }

 private:
  std::shared_ptr<const TensorPipeRpc> rpc_;
  Worker owner_;
  std::int64_t number_;
};

Bytes TensorPipeRpc::publish(const Shard& shard) {
  WireWriter out;
  out.number(shelf_->put(shard));
  return out.take();
}

void TensorPipeRpc::withdraw(const Bytes& published) noexcept { shelf_->take(WireReader(published).number()); }

RemoteShard TensorPipeRpc::remote_shard(int owner, const Bytes& published) {
  SHARD_CHECK_VALUE(owner >= 0 && owner < options_.world_size, "RPC: there is no worker ", owner);
  const Worker& worker = workers_[static_cast<std::size_t>(owner)];
  return {worker, std::make_shared<Fetch>(shared_from_this(), worker, WireReader(published).number())};
}

at::IValue TensorPipeRpc::request(const Worker& owner, std::int64_t number) const {
  const auto owner_id = static_cast<torch_rpc::worker_id_t>(owner.id);
  torch_rpc::ScriptRRefFetchCall call(static_cast<torch_rpc::worker_id_t>(options_.rank), {owner_id, number});
  const auto future =
      agent_->send(agent_->getWorkerInfo(owner_id), std::move(call).toMessage(), seconds(options_.timeout));
  future->waitAndThrow();
  const auto answer = future->constValue().toCustomClass<Message>();
  return torch_rpc::ScriptRRefFetchRet::fromMessage(*answer)->values().at(0);
}

void TensorPipeRpc::bring(Shard& shard, const Worker& owner) const {
  const auto map = options_.device_maps.find(owner.name);
  if (map == options_.device_maps.end()) return;
  const at::Device there = shard.metadata.placement ? shard.metadata.placement->device() : at::Device(at::kCPU);
  const auto here = map->second.find(there);
  if (here == map->second.end()) return;
  shard.tensor = shard.tensor.detach().to(here->second).set_requires_grad(shard.tensor.requires_grad());
}

Shard TensorPipeRpc::fetch(const Worker& owner, std::int64_t number) const {
  SHARD_CHECK(!stopped_, "RPC: cannot read the shard of ", owner.name, ": RPC was shut down in this process");
  try {
    Shard shard = from_value(request(owner, number));
    bring(shard, owner);
    return shard;
  } catch (const std::exception& error) {
    SHARD_CHECK(false, "RPC: the shard of ", owner.name, " cannot be fetched (timeout ", options_.timeout.count(),
                " ms): ", first_line_of(error));
  }
}

void TensorPipeRpc::shut_down() {
  try {
    // Names missing workers, which torch's own barrier does not. After it, no worker fetches any more.
    meeting_.barrier();
    agent_->join(true);
    meeting_.leave();
  } catch (...) {
    stop();
    throw;
  }
  stop();
}

void TensorPipeRpc::stop() {
  if (stopped_.exchange(true)) return;
  end_agent(*agent_);
  shelf_->clear();
}

}  // namespace

std::shared_ptr<RpcAgent> init_rpc(c10::intrusive_ptr<c10d::Store> store, const RpcOptions& options) {
  SHARD_CHECK(!current_rpc_agent() && !torch_rpc::RpcAgent::isCurrentRpcAgentSet(), "RPC is initialized already");
  SHARD_CHECK_VALUE(options.rank >= 0 && options.rank < options.world_size, "RPC: rank ", options.rank, " is none of ",
                    options.world_size);
  SHARD_CHECK_VALUE(!options.name.empty(), "RPC: a worker needs a name");
  auto rpc = std::make_shared<TensorPipeRpc>(*store, options);
  set_current_rpc_agent(rpc);
  return rpc;
}

void shutdown_rpc() {
  const auto rpc = std::dynamic_pointer_cast<TensorPipeRpc>(current_rpc_agent());
  SHARD_CHECK(rpc, "RPC is not initialized");
  set_current_rpc_agent(nullptr);
  rpc->shut_down();
}

}  // namespace shard
