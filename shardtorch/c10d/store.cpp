#include <arpa/inet.h>
#include <fcntl.h>
#include <netdb.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#include <utility>

#include "libshard/core/digest.h"
#include "libshard/core/error.h"
#include "libshard/core/random_bytes.h"
#include "shardtorch/c10d/attendance.h"
#include "shardtorch/c10d/c10d_group.h"

namespace shard {

namespace {

// A TCP socket that listens on one address. torch's own store listens on all addresses of a host.

struct ListeningSocket {
  int descriptor = -1;  ///< The caller closes it or passes it on.
  std::uint16_t port = 0;
};

using Addresses = std::unique_ptr<addrinfo, decltype(&freeaddrinfo)>;

Addresses addresses_of(const std::string& host, std::uint16_t port) {
  addrinfo wanted{};
  wanted.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (getaddrinfo(host.c_str(), std::to_string(port).c_str(), &wanted, &found) != 0) found = nullptr;
  return {found, freeaddrinfo};
}

std::optional<ListeningSocket> listen_on(const addrinfo& address) {
  const int fd = socket(address.ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return std::nullopt;
  const int on = 1;
  setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);  // Allows a port to be used again right after a job.
  sockaddr_storage bound{};
  socklen_t size = sizeof bound;
  if (bind(fd, address.ai_addr, address.ai_addrlen) != 0 || listen(fd, SOMAXCONN) != 0 ||
      getsockname(fd, reinterpret_cast<sockaddr*>(&bound), &size) != 0) {
    close(fd);
    return std::nullopt;
  }
  const bool is_v6 = bound.ss_family == AF_INET6;
  const in_port_t port = is_v6 ? reinterpret_cast<const sockaddr_in6&>(bound).sin6_port
                               : reinterpret_cast<const sockaddr_in&>(bound).sin_port;
  return ListeningSocket{fd, ntohs(port)};
}

/// Listens on `host` (a name or a number) and `port`; 0: any free one.
/// \returns nothing if the host has no such address, or if the port is in use.
std::optional<ListeningSocket> listen_at(const std::string& host, std::uint16_t port) {
  const Addresses all = addresses_of(host, port);
  for (const addrinfo* each = all.get(); each != nullptr; each = each->ai_next) {
    if (const auto socket = listen_on(*each)) return socket;
  }
  return std::nullopt;
}

using Clock = std::chrono::steady_clock;

constexpr const char* kThisHost = "127.0.0.1";

/// A store, and the secret that only the ranks of the job know.
struct MeetingPoint {
  c10::intrusive_ptr<c10d::Store> store;
  std::string token;
};

c10d::TCPStoreOptions store_options(const Launch& launch, int port, std::chrono::milliseconds timeout) {
  c10d::TCPStoreOptions options;
  options.port = static_cast<std::uint16_t>(port);
  options.numWorkers = static_cast<std::size_t>(launch.size);
  options.waitWorkers = false;
  options.timeout = timeout;
  return options;
}

/// Connects to the store of rank 0. torch waits without limit for its first answer. If a different program listens
/// there, none comes, so a separate thread connects.
c10::intrusive_ptr<c10d::TCPStore> client(const Launch& launch, const std::string& host, int port,
                                          std::chrono::milliseconds timeout) {
  using Store = c10::intrusive_ptr<c10d::TCPStore>;
  constexpr std::chrono::seconds kMore{2};  // If nothing listens there, torch's own error comes first.
  std::packaged_task<Store()> task([host, options = store_options(launch, port, timeout)] {
    return c10::make_intrusive<c10d::TCPStore>(host, options);
  });
  std::future<Store> store = task.get_future();
  std::thread(std::move(task)).detach();
  if (store.wait_for(timeout + kMore) == std::future_status::ready) return store.get();
  throw Error(ErrorCode::kPeer,
              "cannot connect to rank 0: the program at " + host + ":" + std::to_string(port) + " does not answer")
      .because("it may be a different program that uses this port");
}

/// A name that means this host on every host. Other names may resolve to a loopback address on their own host.
bool is_loopback(const std::string& host) {
  return host == "localhost" || host == "::1" || host.compare(0, 4, "127.") == 0;
}

/// The store on rank 0. On one host it listens only on the loopback. For several hosts, or if the program already has a
/// store at that port, it listens on every address, as torch does.
c10::intrusive_ptr<c10d::TCPStore> server(const Launch& launch, const std::string& host, int port,
                                          std::chrono::milliseconds timeout) {
  c10d::TCPStoreOptions options = store_options(launch, port, timeout);
  options.isServer = true;
  if (const auto socket = is_loopback(host) ? listen_at(host, options.port) : std::nullopt) {
    options.port = socket->port;
    options.masterListenFd = socket->descriptor;  // The store closes it.
  } else {
    options.multiTenant = port != 0;
  }
  return c10::make_intrusive<c10d::TCPStore>(host, options);
}

/// 128 random bits.
std::string random_token() {
  std::array<std::byte, 16> bytes{};
  draw_random(bytes);
  return to_hex(bytes);
}

/// The folder of rank 0's port file, for a job on one host: the launcher's folder for the job, or else one that only
/// this user can write. Each step of Slurm has its own number. The ranks of other launchers on one host have a common
/// parent process, the launcher.
std::string meeting_folder(const Launch& launch) {
  if (!launch.session_folder.empty()) return launch.session_folder;
  const char* const temporary = std::getenv("TMPDIR");
  const std::string folder = std::string(temporary != nullptr && *temporary != '\0' ? temporary : "/tmp") +
                             "/shardctl-" + std::to_string(getuid()) + "-" +
                             (launch.launcher == Launcher::kSlurm ? launch.job : std::to_string(getppid()));
  struct stat status {};
  const bool is_there = mkdir(folder.c_str(), 0700) == 0 || lstat(folder.c_str(), &status) == 0;
  const bool is_ours =
      status.st_mode == 0 || (S_ISDIR(status.st_mode) && status.st_uid == getuid() && (status.st_mode & 077) == 0);
  if (is_there && is_ours) return folder;
  throw Error(ErrorCode::kPeer, "cannot use the folder through which the ranks find each other")
      .in_file(folder)
      .expected("a folder of this user with mode 0700")
      .suggest(Remedy::kNameRendezvous);
}

/// The name of a port file. Characters that a path cannot contain are replaced.
std::string port_file(const Launch& launch) {
  std::string job = launch.job;
  for (char& c : job) c = c == '/' ? '_' : c;
  return meeting_folder(launch) + "/shardctl-" + job + ".port";
}

/// Removes the port file. Rank 0 does so once all ranks have connected. If they do not connect, any rank does, because
/// rank 0 may be dead.
void remove_port_file(const Launch& launch) {
  std::remove(port_file(launch).c_str());
  if (launch.session_folder.empty()) rmdir(meeting_folder(launch).c_str());
}

/// Writes the data for the other ranks. Only this user can read it.
void write_port_file(const std::string& file, int port, const std::string& token) {
  const std::string text = std::to_string(port) + " " + token + "\n", made = file + ".new";
  std::remove(made.c_str());
  const int fd = open(made.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
  const bool is_written = fd >= 0 && write(fd, text.data(), text.size()) == static_cast<ssize_t>(text.size());
  if (fd >= 0) close(fd);
  if (is_written && std::rename(made.c_str(), file.c_str()) == 0) return;
  throw Error(ErrorCode::kPeer, "the port file cannot be written").in_file(file);
}

/// The store on rank 0. It uses any free port and writes the port and the job's token to a file.
MeetingPoint publish(const Launch& launch, std::chrono::milliseconds timeout) {
  const auto store = server(launch, kThisHost, 0, timeout);
  const std::string token = random_token();
  write_port_file(port_file(launch), store->getPort(), token);
  return {store, token};
}

MeetingPoint find(const Launch& launch, std::chrono::milliseconds timeout) {
  const std::string file = port_file(launch);
  for (const Clock::time_point end = Clock::now() + timeout; Clock::now() < end;) {
    int port = 0;
    std::string token;
    if (std::ifstream(file) >> port >> token) return {client(launch, kThisHost, port, timeout), token};
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  throw Error(ErrorCode::kPeer, "rank 0 did not publish its address").in_file(file);
}

/// The prefix of the job's keys. A process without the token cannot pose as one of the ranks. Numbers distinguish runs,
/// because torchrun's store outlives a program, and a script may start shardctl twice, in the same order on every rank.
std::string prefix_of(const Launch& launch, const MeetingPoint& point) {
  std::string job = "/shardctl/" + launch.job;
  if (!point.token.empty()) job += "/" + point.token;
  if (!launch.agent_hosts_store) return job;
  return job + "/" + std::to_string(point.store->add(job + "/starts/" + std::to_string(launch.rank), 1));
}

bool has_address(const Launch& launch) { return !launch.address.empty() && launch.port != 0; }
bool meets_by_file(const Launch& launch) { return !has_address(launch) && launch.is_on_one_host(); }

MeetingPoint open_store(const Launch& launch, std::chrono::milliseconds timeout) {
  if (launch.agent_hosts_store) return {client(launch, launch.address, launch.port, timeout), {}};
  if (has_address(launch)) {
    const std::string host = launch.is_on_one_host() ? kThisHost : launch.address;
    const auto open = launch.rank == 0 ? server : client;
    return {open(launch, host, launch.port, timeout), launch.token};
  }
  if (meets_by_file(launch)) return launch.rank == 0 ? publish(launch, timeout) : find(launch, timeout);
  throw Error(ErrorCode::kInvalidArgument, "the ranks are on several hosts, and the address of rank 0 is unknown")
      .hint("pass MASTER_ADDR and MASTER_PORT on: mpirun -x MASTER_ADDR -x MASTER_PORT")
      .suggest(Remedy::kNameRendezvous);
}

constexpr const char* kCame = "came";

/// Waits until all ranks have connected. Gloo and NCCL would give up before the timeout that the user set.
void wait_for_all(c10d::Store& store, const Launch& launch, std::chrono::milliseconds timeout) {
  store.set(attendance_key(kCame, launch.rank), std::string("y"));
  if (store.add("number", 1) == launch.size) store.set("all", std::string("y"));
  try {
    store.wait({"all"}, timeout);
  } catch (const c10::Error&) {
    const std::string absent = absent_ranks(store, kCame, launch.size);
    if (absent.empty()) return;  // The last rank has just connected.
    throw Error(ErrorCode::kPeer,
                "not all ranks connected within " + std::to_string(timeout.count()) + " ms: " + absent + " did not");
  }
}

}  // namespace

c10::intrusive_ptr<c10d::Store> make_store(const Launch& launch, std::chrono::milliseconds timeout) {
  try {
    const MeetingPoint point = open_store(launch, timeout);
    const auto store = c10::make_intrusive<c10d::PrefixStore>(prefix_of(launch, point), point.store);
    wait_for_all(*store, launch, timeout);
    if (meets_by_file(launch) && launch.rank == 0) remove_port_file(launch);
    return store;
  } catch (...) {
    if (meets_by_file(launch)) remove_port_file(launch);
    throw;
  }
}

}  // namespace shard
