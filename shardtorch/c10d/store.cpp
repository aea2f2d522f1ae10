#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <thread>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "libshard/core/error.h"
#include "shardtorch/c10d/c10d_group.h"

namespace shard {

namespace {

using Clock = std::chrono::steady_clock;

c10d::TCPStoreOptions store_options(const Launch& launch, int port, bool hosts, std::chrono::milliseconds timeout) {
  c10d::TCPStoreOptions options;
  options.port = static_cast<std::uint16_t>(port);
  options.isServer = hosts;
  options.numWorkers = static_cast<std::size_t>(launch.size);
  options.multiTenant = !launch.agent_hosts_store && port != 0;
  options.waitWorkers = false;
  options.timeout = timeout;
  return options;
}

/// Where rank 0 of a job on one host leaves its port: the launcher's own folder of the job, else one that only this
/// user can write. Ranks on one host have one parent, the launcher.
std::string meeting_folder(const Launch& launch) {
  if (!launch.session_folder.empty()) return launch.session_folder;
  const char* const temporary = std::getenv("TMPDIR");
  const std::string folder = std::string(temporary != nullptr ? temporary : "/tmp") + "/shardctl-" +
                             std::to_string(getuid()) + "-" + std::to_string(getppid());
  struct stat status {};
  const bool is_there = mkdir(folder.c_str(), 0700) == 0 || lstat(folder.c_str(), &status) == 0;
  const bool is_ours =
      status.st_mode == 0 || (S_ISDIR(status.st_mode) && status.st_uid == getuid() && (status.st_mode & 077) == 0);
  if (is_there && is_ours) return folder;
  throw Error(ErrorCode::kPeer, "the ranks have no folder to meet in").in_file(folder).suggest(Remedy::kNameRendezvous);
}

/// A port file's name; characters that a path cannot hold are replaced.
std::string port_file(const Launch& launch) {
  std::string job = launch.job;
  for (char& c : job) c = c == '/' ? '_' : c;
  return meeting_folder(launch) + "/shardctl-" + job + ".port";
}

/// Takes the port file away: rank 0 when all have come, any rank when they do not, for rank 0 may be dead.
void remove_port_file(const Launch& launch) {
  std::remove(port_file(launch).c_str());
  if (launch.session_folder.empty()) rmdir(meeting_folder(launch).c_str());
}

/// Rank 0's store, which takes any port and leaves it in a file.
c10::intrusive_ptr<c10d::Store> publish(const Launch& launch, std::chrono::milliseconds timeout) {
  auto store = c10::make_intrusive<c10d::TCPStore>("127.0.0.1", store_options(launch, 0, true, timeout));
  const std::string file = port_file(launch);
  std::ofstream(file + ".new") << store->getPort() << '\n';
  if (std::rename((file + ".new").c_str(), file.c_str()) != 0) {
    throw Error(ErrorCode::kPeer, "the port file cannot be written").in_file(file);
  }
  return store;
}

c10::intrusive_ptr<c10d::Store> find(const Launch& launch, std::chrono::milliseconds timeout) {
  const std::string file = port_file(launch);
  for (const Clock::time_point end = Clock::now() + timeout; Clock::now() < end;) {
    int port = 0;
    if (std::ifstream(file) >> port) {
      return c10::make_intrusive<c10d::TCPStore>("127.0.0.1", store_options(launch, port, false, timeout));
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  throw Error(ErrorCode::kPeer, "rank 0 did not say where it is").in_file(file);
}

/// torchrun's store outlives a program: a script may start shardctl twice, on every rank alike.
std::string prefix_of(const Launch& launch, c10d::Store& store) {
  const std::string job = "/shardctl/" + launch.job;
  if (!launch.agent_hosts_store) return job;
  return job + "/" + std::to_string(store.add(job + "/starts/" + std::to_string(launch.rank), 1));
}

bool has_address(const Launch& launch) { return !launch.address.empty() && launch.port != 0; }
bool meets_by_file(const Launch& launch) { return !has_address(launch) && launch.local_size >= launch.size; }

c10::intrusive_ptr<c10d::Store> open_store(const Launch& launch, std::chrono::milliseconds timeout) {
  if (has_address(launch)) {
    const bool hosts = launch.rank == 0 && !launch.agent_hosts_store;
    return c10::make_intrusive<c10d::TCPStore>(launch.address, store_options(launch, launch.port, hosts, timeout));
  }
  if (meets_by_file(launch)) return launch.rank == 0 ? publish(launch, timeout) : find(launch, timeout);
  throw Error(ErrorCode::kInvalidArgument, "the ranks lie on several hosts, and where rank 0 is is not known")
      .hint("pass MASTER_ADDR and MASTER_PORT on: mpirun -x MASTER_ADDR -x MASTER_PORT")
      .suggest(Remedy::kNameRendezvous);
}

std::string came(int rank) { return "came/" + std::to_string(rank); }

/// "rank 1, rank 3": those that have not come; many are cut short.
std::string absent_ranks(c10d::Store& store, int size) {
  constexpr int kMost = 8;
  std::string names;
  for (int rank = 0, found = 0; rank < size; ++rank) {
    if (store.check({came(rank)})) continue;
    if (++found > kMost) return names + ", ...";
    names += (names.empty() ? "rank " : ", rank ") + std::to_string(rank);
  }
  return names;
}

/// Gloo and NCCL have less patience with ranks that start late than the user.
void wait_for_all(c10d::Store& store, const Launch& launch, std::chrono::milliseconds timeout) {
  store.set(came(launch.rank), std::string("y"));
  if (store.add("number", 1) == launch.size) store.set("all", std::string("y"));
  try {
    store.wait({"all"}, timeout);
  } catch (const c10::Error&) {
    const std::string absent = absent_ranks(store, launch.size);
    if (absent.empty()) return;  // The last one came this moment.
    throw Error(ErrorCode::kPeer,
                "not all ranks came within " + std::to_string(timeout.count()) + " ms: " + absent + " did not");
  }
}

}  // namespace

c10::intrusive_ptr<c10d::Store> make_store(const Launch& launch, std::chrono::milliseconds timeout) {
  try {
    const auto opened = open_store(launch, timeout);
    const auto store = c10::make_intrusive<c10d::PrefixStore>(prefix_of(launch, *opened), opened);
    wait_for_all(*store, launch, timeout);
    if (meets_by_file(launch) && launch.rank == 0) remove_port_file(launch);
    return store;
  } catch (...) {
    if (meets_by_file(launch)) remove_port_file(launch);
    throw;
  }
}

}  // namespace shard
