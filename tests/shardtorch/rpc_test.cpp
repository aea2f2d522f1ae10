// The agent behind remote shards: four workers, one process each.
#include "shardtorch/rpc/rpc.h"

#include <ATen/ATen.h>
#include <signal.h>
#include <unistd.h>

#include <fstream>
#include <thread>
#include <torch/csrc/distributed/c10d/FileStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include "libshard/ranks/wire.h"
#include "shardtorch/errors.h"
#include "tests/support/distributed/environment.h"
#include "tests/support/distributed/multi_process_test.h"
#include "tests/support/distributed/sharded_tensor_test.h"

namespace shard::test {

namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr milliseconds kTimeout{50'000};
constexpr milliseconds kShortTimeout{4000};  // The point at which a thread waits.
constexpr milliseconds kSlack{20'000};       // For machines that are busy.

/// State of a process: 'R', 'S', 'T', ...; 'Z' also if it no longer exists.
char state_of(pid_t process) {
  std::ifstream status("/proc/" + std::to_string(process) + "/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("State:\t")) return line[7];
  }
  return 'Z';
}
void wait_until(pid_t process, char state) {
  while (state_of(process) != state) std::this_thread::sleep_for(milliseconds(10));
}

milliseconds time_of(const std::function<void()>& action) {
  const Clock::time_point start = Clock::now();
  action();
  return std::chrono::duration_cast<milliseconds>(Clock::now() - start);
}

class Rpc : public MultiProcessTestCase {
 protected:
  c10::intrusive_ptr<c10d::Store> store() {
    if (!store_) store_ = c10::make_intrusive<c10d::FileStore>(file_name(), world_size());
    return c10::make_intrusive<c10d::PrefixStore>("rpc", store_);
  }
  std::shared_ptr<RpcAgent> start(milliseconds timeout = kTimeout) {
    return init_rpc(store(), {"worker" + std::to_string(rank()), rank(), world_size(), timeout});
  }
  /// For workers that will be missing after a short time: all of them are present before.
  std::shared_ptr<RpcAgent> start_hasty() {
    meet("started");
    return start(kShortTimeout);
  }
  /// Waits for all ranks, or those below `ranks`.
  void meet(const std::string& where, int ranks = 4) {
    std::vector<std::string> keys;
    for (int each = 0; each < ranks; ++each) keys.push_back(where + std::to_string(each));
    store()->set(where + std::to_string(rank()), std::string("y"));
    store()->wait(keys);
  }
  static pid_t pid_of(RpcAgent& rpc, std::size_t worker) {
    return std::stoi(std::string(as_text(rpc.all_gather(to_bytes(std::to_string(getpid())))[worker])));
  }
  /// Rank r's: (r + 1, 3) elements of value r, at row 10 r.
  Shard own_shard() const {
    return Shard::from_tensor_and_offsets(at::full({rank() + 1, 3}, 1.0 * rank()), {10 * rank(), 0}, rank());
  }
  /// Every rank's own shard, published, as the ranks see each other's.
  std::vector<RemoteShard> exchange(RpcAgent& rpc, const Shard& shard) const {
    const std::vector<Bytes> published = rpc.all_gather(rpc.publish(shard));
    std::vector<RemoteShard> remote;
    for (int owner = 0; owner < world_size(); ++owner) {
      remote.push_back(rpc.remote_shard(owner, published[static_cast<std::size_t>(owner)]));
    }
    return remote;
  }

 private:
  c10::intrusive_ptr<c10d::Store> store_;
};

SHARD_RANKS_TEST(Rpc, EveryWorkerKnowsAllByIdAndName) {
  const auto rpc = start();
  ASSERT_EQ(rpc->workers().size(), 4U);
  for (int id = 0; id < 4; ++id) {
    EXPECT_EQ(rpc->workers()[static_cast<std::size_t>(id)].id, id);
    EXPECT_EQ(rpc->workers()[static_cast<std::size_t>(id)].name, "worker" + std::to_string(id));
  }
  EXPECT_EQ(rpc->self().id, rank());
  EXPECT_EQ(current_rpc_agent(), rpc);
  shutdown_rpc();
  EXPECT_EQ(current_rpc_agent(), nullptr);
}

SHARD_RANKS_TEST(Rpc, FetchBringsValuesAndMetadata) {
  const auto rpc = start();
  const std::vector<RemoteShard> remote = exchange(*rpc, own_shard());
  for (int owner = 0; owner < 4; ++owner) {
    const RemoteShard& there = remote[static_cast<std::size_t>(owner)];
    EXPECT_EQ(there.owner().id, owner);
    const Shard here = there.to_here();
    EXPECT_TRUE(tensors_equal(here.tensor, at::full({owner + 1, 3}, 1.0 * owner)));
    EXPECT_EQ(here.metadata, ShardMetadata({10 * owner, 0}, {owner + 1, 3}, RemoteDevice(owner, at::kCPU)));
  }
  shutdown_rpc();
}

SHARD_RANKS_TEST(Rpc, ShardsArriveOnTheDeviceOfTheMap) {
  // "meta" is a device that every machine has; worker 1's shards go there, the others' stay on the CPU.
  const auto rpc = init_rpc(store(), {.name = "worker" + std::to_string(rank()),
                                      .rank = rank(),
                                      .world_size = world_size(),
                                      .timeout = kTimeout,
                                      .device_maps = {{"worker1", {{at::kCPU, at::kMeta}}}}});
  const std::vector<RemoteShard> remote = exchange(*rpc, own_shard());
  for (int owner = 0; owner < 4; ++owner) {
    const Shard here = remote[static_cast<std::size_t>(owner)].to_here();
    EXPECT_EQ(here.tensor.device().type(), owner == 1 ? at::kMeta : at::kCPU);
    EXPECT_EQ(here.tensor.sizes(), at::IntArrayRef({owner + 1, 3}));
    EXPECT_EQ(here.metadata.placement, RemoteDevice(owner, at::kCPU)) << "where it lives";
  }
  shutdown_rpc();
}

SHARD_RANKS_TEST(Rpc, ADeviceMapForNobodyIsRefused) {
  SHARD_EXPECT_THROW(init_rpc(store(), {.name = "worker" + std::to_string(rank()),
                                        .rank = rank(),
                                        .world_size = world_size(),
                                        .timeout = kTimeout,
                                        .device_maps = {{"worker7", {{at::kCPU, at::kMeta}}}}}),
                     c10::ValueError, "a device map is for 'worker7', which is not the name of a worker");
}

SHARD_RANKS_TEST(Rpc, DtypesAndRequiresGradArrive) {
  const auto rpc = start();
  for (const at::ScalarType dtype : {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16, at::kLong, at::kBool, at::kByte,
                                     at::kComplexFloat, at::kFloat8_e4m3fn}) {
    const at::Tensor tensor = at::arange(6).remainder(2).reshape({2, 3}).to(dtype);
    const bool requires_grad = dtype == at::kFloat;
    const Shard shard(tensor.clone().set_requires_grad(requires_grad), ShardMetadata({0, 0}, {2, 3}));
    const Shard here = exchange(*rpc, shard)[static_cast<std::size_t>((rank() + 1) % 4)].to_here();
    EXPECT_EQ(here.tensor.scalar_type(), dtype);
    EXPECT_TRUE(here.tensor.to(at::kComplexDouble).equal(tensor.to(at::kComplexDouble))) << dtype;
    EXPECT_EQ(here.tensor.requires_grad(), requires_grad);
    EXPECT_FALSE(here.metadata.placement.has_value());
  }
  shutdown_rpc();
}

SHARD_RANKS_TEST(Rpc, EmptyShardKeepsItsOtherDimensions) {
  const auto rpc = start();
  const Shard empty = Shard::from_tensor_and_offsets(at::empty({0, 20}), {40, 0}, rank());
  const Shard here = exchange(*rpc, empty)[static_cast<std::size_t>((rank() + 1) % 4)].to_here();
  EXPECT_EQ(here.tensor.sizes(), at::IntArrayRef({0, 20}));
  EXPECT_EQ(here.metadata.shard_offsets, (Sizes{40, 0}));
  shutdown_rpc();
}

SHARD_RANKS_TEST(Rpc, ViewOfALargerTensorArrivesAsItself) {
  const auto rpc = start();
  const at::Tensor whole = at::arange(100.0).reshape({10, 10});
  const Shard rows(whole.narrow(0, 2, 3), ShardMetadata({2, 0}, {3, 10}));
  const Shard here = exchange(*rpc, rows)[static_cast<std::size_t>((rank() + 1) % 4)].to_here();
  EXPECT_TRUE(tensors_equal(here.tensor, whole.narrow(0, 2, 3)));
  shutdown_rpc();
}

SHARD_RANKS_TEST(Rpc, FetchSeesWhatTheOwnerWroteSince) {
  const auto rpc = start();
  const Shard shard = own_shard();
  const std::vector<RemoteShard> remote = exchange(*rpc, shard);
  at::Tensor(shard.tensor).fill_(100.0 + rank());
  rpc->all_gather({});
  const int peer = (rank() + 1) % 4;
  EXPECT_TRUE(
      tensors_equal(remote[static_cast<std::size_t>(peer)].to_here().tensor, at::full({peer + 1, 3}, 100.0 + peer)));
  shutdown_rpc();
}

SHARD_RANKS_TEST(Rpc, AllGatherTakesPiecesOfAnySize) {
  const auto rpc = start();
  for (int round = 0; round < 5; ++round) {
    const auto text = [round](int worker) { return std::string(static_cast<std::size_t>(worker * round), 'x'); };
    const std::vector<Bytes> all = rpc->all_gather(to_bytes(text(rank())));
    ASSERT_EQ(all.size(), 4U);
    for (int worker = 0; worker < 4; ++worker) {
      EXPECT_EQ(all[static_cast<std::size_t>(worker)], to_bytes(text(worker))) << round;
    }
  }
  shutdown_rpc();
}

SHARD_RANKS_TEST(Rpc, AllGatherLeavesNoKeys) {
  const auto rpc = start();
  rpc->all_gather({});
  const std::int64_t before = store()->getNumKeys();
  for (int round = 0; round < 20; ++round) rpc->all_gather({});
  // Results of the last call, and of the next one of a faster worker.
  EXPECT_LE(store()->getNumKeys(), before + 2 * 5);
  rpc->all_gather({});
  shutdown_rpc();
}

SHARD_RANKS_TEST(Rpc, UnknownShardIsAnErrorAtOnce) {
  const auto rpc = start();
  Bytes unknown = rpc->publish(own_shard());
  unknown.front() = std::byte{99};
  const RemoteShard nothing = rpc->remote_shard((rank() + 1) % 4, unknown);
  const milliseconds took = time_of([&] {
    SHARD_EXPECT_THROW(
        nothing.to_here(), c10::Error,
        "RPC: the shard of worker" + std::to_string((rank() + 1) % 4) + " cannot be fetched (timeout 50000 ms)");
  });
  EXPECT_LT(took, kSlack);
  shutdown_rpc();
}

SHARD_RANKS_TEST(Rpc, WithdrawnShardIsGone) {
  const auto rpc = start();
  const Bytes own = rpc->publish(own_shard());
  const Bytes there = rpc->all_gather(own)[static_cast<std::size_t>((rank() + 1) % 4)];
  const RemoteShard remote = rpc->remote_shard((rank() + 1) % 4, there);
  remote.to_here();
  rpc->all_gather({});
  rpc->withdraw(own);
  rpc->all_gather({});
  SHARD_EXPECT_THROW(remote.to_here(), c10::Error, "no shard is published");
  shutdown_rpc();
}

SHARD_RANKS_TEST(Rpc, UnknownWorkerIsRefused) {
  const auto rpc = start();
  const Bytes own = rpc->publish(own_shard());
  SHARD_EXPECT_THROW(rpc->remote_shard(4, own), c10::ValueError, "there is no worker 4");
  shutdown_rpc();
}

SHARD_RANKS_TEST(Rpc, CleanEndSaysNothing) {
  const Output output = captured_output([&] {
    const auto rpc = start();
    const std::vector<RemoteShard> remote = exchange(*rpc, own_shard());
    for (const RemoteShard& there : remote) there.to_here();
    shutdown_rpc();
  });
  EXPECT_EQ(output.out, "");
  EXPECT_EQ(output.err, "");
}

SHARD_RANKS_TEST(Rpc, ItCanStartAgainInTheSameStore) {
  for (int round = 0; round < 3; ++round) {
    const auto rpc = start();
    const Shard here = exchange(*rpc, own_shard())[static_cast<std::size_t>((rank() + 1) % 4)].to_here();
    EXPECT_EQ(here.tensor.size(0), (rank() + 1) % 4 + 1);
    shutdown_rpc();
  }
}

SHARD_RANKS_TEST(Rpc, NothingCanBeFetchedAfterTheEnd) {
  std::vector<RemoteShard> remote;
  remote = exchange(*start(), own_shard());
  shutdown_rpc();
  SHARD_EXPECT_THROW(remote[0].to_here(), c10::Error, "RPC was shut down in this process");
}

SHARD_RANKS_TEST(Rpc, ThereIsOneAgentPerProcess) {
  const auto rpc = start();
  SHARD_EXPECT_THROW(start(), c10::Error, "RPC is initialized already");
  EXPECT_EQ(current_rpc_agent(), rpc);
  shutdown_rpc();
  SHARD_EXPECT_THROW(shutdown_rpc(), c10::Error, "RPC is not initialized");
}

SHARD_RANKS_TEST(Rpc, ProgramMayEndWithoutShutdown) {
  const auto rpc = start();
  exchange(*rpc, own_shard())[static_cast<std::size_t>((rank() + 1) % 4)].to_here();
  rpc->all_gather({});
}

// --- Workers that do not come ----------------------------------------------------------------------------------------

/// Takes no address of an agent.
class NoAddresses final : public c10d::PrefixStore {
 public:
  using PrefixStore::PrefixStore;
  void set(const std::string& key, const std::vector<std::uint8_t>& value) override {
    SHARD_CHECK(key.find("addrs/") == std::string::npos, "no addresses here");
    PrefixStore::set(key, value);
  }
  c10::intrusive_ptr<c10d::Store> clone() override {
    return c10::make_intrusive<NoAddresses>(prefix_, store_->clone());
  }
};

class OneWorker : public Rpc {
 public:
  int world_size() const override { return 1; }
};

SHARD_RANKS_TEST(OneWorker, AnAgentThatCannotStartLeavesNone) {
  const auto refusing = c10::make_intrusive<NoAddresses>("refusing", store());
  SHARD_EXPECT_THROW(init_rpc(refusing, {"worker0", 0, 1, kTimeout}), c10::Error, "no addresses here");
  EXPECT_EQ(current_rpc_agent(), nullptr);
  const auto rpc = start();
  EXPECT_EQ(rpc->self().name, "worker0");
  shutdown_rpc();
}

SHARD_RANKS_TEST(Rpc, StartNamesTheWorkerThatIsMissing) {
  if (rank() == 3) return;
  meet("started", 3);
  const milliseconds took = time_of(
      [&] { SHARD_EXPECT_THROW(start(kShortTimeout), c10::Error, "RPC: worker 3 did not connect within 4000 ms"); });
  EXPECT_LT(took, kShortTimeout + kSlack);
  EXPECT_EQ(current_rpc_agent(), nullptr);
}

SHARD_RANKS_TEST(Rpc, DeadWorkersShardIsAnErrorInTime) {
  const auto rpc = start_hasty();
  const std::vector<RemoteShard> remote = exchange(*rpc, own_shard());
  for (const RemoteShard& there : remote) there.to_here();  // All have pipes to the one that will die.
  const pid_t dying = pid_of(*rpc, 2);
  if (rank() == 2) _exit(0);
  wait_until(dying, 'Z');
  const milliseconds took = time_of([&] {
    SHARD_EXPECT_THROW(remote[2].to_here(), c10::Error,
                       "RPC: the shard of worker2 cannot be fetched (timeout 4000 ms)");
  });
  EXPECT_LT(took, kShortTimeout + kSlack);
  EXPECT_TRUE(tensors_equal(remote[1].to_here().tensor, at::full({2, 3}, 1.0)));
  store()->set("done" + std::to_string(rank()), std::string("y"));
  store()->wait({"done0", "done1", "done3"});  // Worker 1 exists until the others have its shard.
}

SHARD_RANKS_TEST(Rpc, ShutdownWithADeadWorkerEndsInTime) {
  const auto rpc = start_hasty();
  exchange(*rpc, own_shard())[static_cast<std::size_t>((rank() + 1) % 4)].to_here();
  rpc->all_gather({});
  if (rank() == 2) _exit(0);
  const milliseconds took =
      time_of([&] { SHARD_EXPECT_THROW(shutdown_rpc(), c10::Error, "RPC: worker 2 did not connect within 4000 ms"); });
  EXPECT_LT(took, kShortTimeout + kSlack);
  EXPECT_EQ(current_rpc_agent(), nullptr);
}

SHARD_RANKS_TEST(Rpc, StoppedWorkerIsWaitedForNoLongerThanTheTimeout) {
  const auto rpc = start_hasty();
  const std::vector<RemoteShard> remote = exchange(*rpc, own_shard());
  const pid_t stopped = pid_of(*rpc, 2);
  if (rank() == 2) raise(SIGSTOP);
  if (rank() == 0) {
    wait_until(stopped, 'T');
    const milliseconds took = time_of([&] {
      SHARD_EXPECT_THROW(remote[2].to_here(), c10::Error,
                         "RPC: the shard of worker2 cannot be fetched (timeout 4000 ms)");
    });
    EXPECT_GE(took, kShortTimeout - milliseconds(200));
    EXPECT_LT(took, kShortTimeout + kSlack);
    kill(stopped, SIGCONT);
  }
  meet("continued");  // Longer than the timeout: no worker shuts down before.
  shutdown_rpc();
}

}  // namespace

}  // namespace shard::test
