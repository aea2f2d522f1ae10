// Worlds: processes that connect through a store, and threads of one process.
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <functional>
#include <map>
#include <mutex>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <utility>

#include "libshard/core/error.h"
#include "libshard/core/error_text.h"
#include "libshard/ranks/launch.h"
#include "libshard/ranks/open_group.h"
#include "libshard/ranks/thread_group.h"
#include "shardtorch/c10d/c10d_group.h"
#include "shardtorch/c10d/gloo.h"
#include "shardtorch/c10d/nccl.h"
#include "shardtorch/errors.h"
#include "shardtorch/sharded_tensor/process_group.h"
#include "shardtorch/sharded_tensor/shared_memory.h"

namespace shard {

namespace {

using StorePtr = c10::intrusive_ptr<c10d::Store>;
using std::chrono::milliseconds;

int member_of(const std::vector<int>& ranks, int rank) {
  const auto member = std::ranges::find(ranks, rank);
  SHARD_CHECK_VALUE(member != ranks.end(), "rank ", rank, " creates a group of which it is not a member");
  return static_cast<int>(member - ranks.begin());
}

/// Adds a number to a name that was used before, because its keys, or its meeting, may still exist.
class Names {
 public:
  std::string next(const std::string& name) {
    const std::scoped_lock lock(mutex_);
    return name + "/" + std::to_string(++uses_[name]);
  }

 private:
  std::mutex mutex_;
  std::map<std::string, int> uses_;
};

/// Waits for all ranks. Returns whether they are on one host. Cost: five requests to the store per rank.
bool meet_on_one_host(c10d::Store& store, int size, milliseconds timeout) {
  const std::string own = host_identity();
  const auto bytes = [](const std::string& text) { return std::vector<std::uint8_t>(text.begin(), text.end()); };
  if (store.compareSet("host", bytes(""), bytes(own)) != bytes(own)) store.add("elsewhere", 1);
  if (store.add("came", 1) == size) store.set("all", std::string("y"));
  store.wait({"all"}, timeout);
  return store.add("elsewhere", 0) == 0;
}

/// Separates the keys of worlds that all ranks create one after another over one store.
StorePtr own_part(const StorePtr& store, int rank) {
  const std::int64_t worlds = store->add("shard/worlds/" + std::to_string(rank), 1);
  return c10::make_intrusive<c10d::PrefixStore>("shard/world" + std::to_string(worlds), store);
}

/// Creates a backend's group over a store of its own.
using MakeBackend = std::function<std::shared_ptr<Group>(StorePtr, int rank, int size)>;

MakeBackend gloo_backend(bool is_one_host, milliseconds timeout) {
  return [device = gloo_device(is_one_host), timeout](StorePtr own, int rank, int ranks) -> std::shared_ptr<Group> {
    return make_gloo_group(std::move(own), rank, ranks, device, timeout);
  };
}

MakeBackend nccl_backend(milliseconds timeout) {
  MakeNcclGroup make = nullptr;
  try {
    make = reinterpret_cast<MakeNcclGroup>(plugin_entry("nccl", kNcclEntry));
  } catch (const Error& error) {
    SHARD_CHECK(false, describe(error));
  }
  const auto* const cuda = c10::impl::getDeviceGuardImpl(at::kCUDA);  // The plug-in's libraries register it.
  SHARD_CHECK(cuda->deviceCount() > 0, "backend nccl needs a GPU for each rank, but this host has none");
  return [make, timeout](StorePtr own, int rank, int ranks) {
    return std::shared_ptr<Group>(make(own, rank, ranks, timeout));
  };
}

/// The factories of a world's groups. Each backend is opened when it is first used. Threads: any.
class Backends {
 public:
  Backends(bool is_one_host, milliseconds timeout) : is_one_host_(is_one_host), timeout_(timeout) {}

  MakeBackend find(const std::string& backend) {
    const std::scoped_lock lock(mutex_);
    MakeBackend& make = opened_[backend];
    if (!make) make = open(backend);
    return make;
  }

 private:
  MakeBackend open(const std::string& backend) const {
    if (backend == "nccl") return nccl_backend(timeout_);
    MakeBackend make;
    as_errors("the rendezvous", [&] { make = gloo_backend(is_one_host_, timeout_); });
    return make;
  }

  bool is_one_host_;
  milliseconds timeout_;
  std::mutex mutex_;
  std::map<std::string, MakeBackend> opened_;
};

void check_backend(const std::string& backend) {
  SHARD_CHECK(backend == "gloo" || backend == "nccl", "unknown backend '", backend, "': expected gloo or nccl");
}

class C10dWorld final : public World {
 public:
  C10dWorld(std::string backend, StorePtr store, int rank, int size, milliseconds timeout)
      : backend_(std::move(backend)),
        whole_store_(store),
        store_(own_part(store, rank)),
        rank_(rank),
        size_(size),
        backends_(meet_on_one_host(*store_, size, timeout), timeout) {}

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  StorePtr store() const override { return whole_store_; }
  std::shared_ptr<Group> make_group(const std::string& name, const std::vector<int>& ranks,
                                    const std::string& asked) override {
    const std::string& backend = asked.empty() ? backend_ : asked;
    check_backend(backend);
    const int member = member_of(ranks, rank_);
    const MakeBackend make = backends_.find(backend);
    return make(c10::make_intrusive<c10d::PrefixStore>(names_.next(name), store_), member,
                static_cast<int>(ranks.size()));
  }

 private:
  std::string backend_;
  StorePtr whole_store_, store_;
  int rank_, size_;
  Backends backends_;
  Names names_;
};

/// Groups of threads that some members have not taken yet, by name.
class Meetings {
 public:
  std::unique_ptr<Group> take(const std::string& name, int rank, int size) {
    const std::scoped_lock lock(mutex_);
    auto [meeting, is_new] = waiting_.try_emplace(name);
    auto& groups = meeting->second;
    if (is_new) groups = make_thread_groups(size);
    std::unique_ptr<Group> own = std::move(groups[static_cast<std::size_t>(rank)]);
    const bool all_took = std::ranges::all_of(groups, [](const auto& group) { return group == nullptr; });
    if (all_took) waiting_.erase(meeting);
    return own;
  }

 private:
  std::mutex mutex_;
  std::map<std::string, std::vector<std::unique_ptr<Group>>> waiting_;
};

class ThreadWorld final : public World {
 public:
  ThreadWorld(std::shared_ptr<Meetings> meetings, int rank, int size)
      : meetings_(std::move(meetings)), rank_(rank), size_(size) {}

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  std::shared_ptr<Group> make_group(const std::string& name, const std::vector<int>& ranks,
                                    const std::string& backend) override {
    SHARD_CHECK(backend.empty() || backend == "threads", "ranks that are threads have no backend '", backend,
                "': expected threads");
    return meetings_->take(names_.next(name), member_of(ranks, rank_), static_cast<int>(ranks.size()));
  }

 private:
  std::shared_ptr<Meetings> meetings_;
  int rank_, size_;
  Names names_;
};

}  // namespace

std::shared_ptr<World> make_c10d_world(const std::string& backend, StorePtr store, int rank, int size,
                                       milliseconds timeout) {
  SHARD_CHECK_VALUE(rank >= 0 && rank < size, "rank ", rank, " of a world of ", size);
  check_backend(backend);
  if (backend == "nccl") nccl_backend(timeout);  // Reports a missing backend before waiting for other ranks.
  std::shared_ptr<World> world;
  as_errors("the rendezvous", [&] { world = std::make_shared<C10dWorld>(backend, store, rank, size, timeout); });
  return world;
}

ProcessGroupPtr init_process_group(const std::string& backend, const InitOptions& options) {
  check_backend(backend);
  const Launch launch = detect_launch({}, process_environment());
  if (backend == "nccl") {
    nccl_backend(options.timeout);  // Loads CUDA, or reports what is missing.
    const auto* const cuda = c10::impl::getDeviceGuardImpl(at::kCUDA);
    cuda->setDevice(at::Device(at::kCUDA, static_cast<at::DeviceIndex>(launch.local_rank % cuda->deviceCount())));
  }
  const StorePtr store = make_store(launch, options.timeout);
  return init_process_group(make_c10d_world(backend, store, launch.rank, launch.size, options.timeout));
}

std::vector<std::shared_ptr<World>> make_thread_worlds(int size) {
  const auto meetings = std::make_shared<Meetings>();
  std::vector<std::shared_ptr<World>> worlds;
  for (int rank = 0; rank < size; ++rank) worlds.push_back(std::make_shared<ThreadWorld>(meetings, rank, size));
  return worlds;
}

}  // namespace shard
