#include "formats/hdf5/parser_process.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <spawn.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstring>

#include "formats/hdf5/reply.h"
#include "libshard/core/error.h"

namespace shard::hdf5 {

namespace {

[[noreturn]] void throw_not_started(const std::string& program, int error) {
  throw Error(ErrorCode::kResource, fmt::format("cannot start the parser of HDF5 files: {}", std::strerror(error)))
      .because(fmt::format("HDF5 files are read by the program '{}'", program));
}

/// The actions of the new process before it executes the program.
class SpawnPlan {
 public:
  explicit SpawnPlan(int socket) {
    posix_spawn_file_actions_init(&actions_);
    posix_spawn_file_actions_adddup2(&actions_, socket, 0);
    posix_spawnattr_init(&attributes_);
    sigset_t signals;
    sigemptyset(&signals);
    posix_spawnattr_setsigmask(&attributes_, &signals);
    sigfillset(&signals);
    posix_spawnattr_setsigdefault(&attributes_, &signals);
    posix_spawnattr_setflags(&attributes_, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
  }
  ~SpawnPlan() {
    posix_spawn_file_actions_destroy(&actions_);
    posix_spawnattr_destroy(&attributes_);
  }
  SpawnPlan(const SpawnPlan&) = delete;
  SpawnPlan& operator=(const SpawnPlan&) = delete;

  int start(pid_t& process, const std::string& program, const std::string& name,
            const std::vector<std::string>& arguments) const {
    std::vector<char*> argv{const_cast<char*>(name.c_str())};
    for (const std::string& each : arguments) argv.push_back(const_cast<char*>(each.c_str()));
    argv.push_back(nullptr);
    char* environment[] = {nullptr};
    return posix_spawn(&process, program.c_str(), &actions_, &attributes_, argv.data(), environment);
  }

 private:
  posix_spawn_file_actions_t actions_{};
  posix_spawnattr_t attributes_{};
};

Fate fate_of(int status) {
  const Fate out_of_time{Fate::Kind::kOutOfTime, "it took too long for a file of this size"};
  if (WIFSIGNALED(status)) {
    const int signal = WTERMSIG(status);
    if (signal == SIGXCPU || signal == SIGKILL) return out_of_time;
    return {Fate::Kind::kEnded, fmt::format("it crashed ({})", strsignal(signal))};
  }
  if (WIFEXITED(status) && WEXITSTATUS(status) == kExitOutOfTime) return out_of_time;
  if (WIFEXITED(status) && WEXITSTATUS(status) == kExitWithoutSandbox) {
    return {Fate::Kind::kWithoutSandbox, "the system does not let it filter its own system calls (seccomp)"};
  }
  return {Fate::Kind::kEnded, "it exited before finishing its answer"};
}

std::chrono::microseconds microseconds_of(const timeval& time) {
  return std::chrono::seconds(time.tv_sec) + std::chrono::microseconds(time.tv_usec);
}

}  // namespace

ParserProcess::ParserProcess(const std::string& program, const std::string& name,
                             const std::vector<std::string>& arguments, std::chrono::milliseconds silence)
    : silence_(silence) {
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) throw_not_started(program, errno);
  const int error = SpawnPlan(ends[1]).start(process_, program, name, arguments);
  close(ends[1]);
  if (error != 0) {
    close(ends[0]);
    throw_not_started(program, error);
  }
  socket_ = ends[0];
}

ParserProcess::~ParserProcess() {
  close(socket_);
  end();
}

std::chrono::microseconds ParserProcess::end() {
  if (process_ >= 0) {
    kill(process_, SIGKILL);
    reap();
  }
  return used_;
}

bool ParserProcess::receive(std::span<std::byte> out) {
  while (!out.empty()) {
    const ssize_t count = recv(socket_, out.data(), out.size(), MSG_DONTWAIT);
    if (count > 0) {
      out = out.subspan(static_cast<std::size_t>(count));
    } else if (count < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
      wait_for(POLLIN);
    } else if (count == 0 || errno != EINTR) {
      return false;
    }
  }
  return true;
}

bool ParserProcess::send(std::span<const std::byte> data) {
  while (!data.empty()) {
    const ssize_t count = ::send(socket_, data.data(), data.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
    if (count > 0) {
      data = data.subspan(static_cast<std::size_t>(count));
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      wait_for(POLLOUT);
    } else if (errno != EINTR) {
      return false;
    }
  }
  return true;
}

void ParserProcess::wait_for(short events) {
  pollfd poll_for{socket_, events, 0};
  const int ready = poll(&poll_for, 1, static_cast<int>(silence_.count()));
  if (ready != 0) return;  // Also for a signal: the caller tries again.
  throw Error(ErrorCode::kCorruption, "cannot read the HDF5 file: its parser stopped answering")
      .of_kind(FindingKind::kBadHeader)
      .because(fmt::format("it was silent for {} s", silence_.count() / 1000));
}

int ParserProcess::reap() {
  int status = 0;
  rusage usage{};
  while (wait4(process_, &status, 0, &usage) < 0 && errno == EINTR) {
  }
  process_ = -1;
  used_ = microseconds_of(usage.ru_utime) + microseconds_of(usage.ru_stime);
  return status;
}

Fate ParserProcess::fate() {
  // It may live on with its end of the socket closed, so it is killed unless it is about to end by itself.
  for (int turn = 0; turn < 100; ++turn) {
    siginfo_t info{};
    if (waitid(P_PID, static_cast<id_t>(process_), &info, WEXITED | WNOHANG | WNOWAIT) != 0 || info.si_pid != 0) break;
    poll(nullptr, 0, 10);
  }
  kill(process_, SIGKILL);
  return fate_of(reap());
}

}  // namespace shard::hdf5
