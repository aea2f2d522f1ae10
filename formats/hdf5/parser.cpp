#include "formats/hdf5/parser.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <spawn.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>

#include "formats/hdf5/reply.h"
#include "formats/hdf5/run_parser.h"
#include "formats/helper.h"
#include "libshard/core/bytes.h"
#include "libshard/core/error.h"
#include "libshard/core/hash_table.h"
#include "libshard/core/shared_library.h"

namespace shard::hdf5 {

namespace {

Fate out_of_time() { return {Fate::Kind::kEnded, "it took too long for a file of this size"}; }

/// This side of one run of the parser over one file.
class Conversation {
 public:
  Conversation(const ParserProgram& program, const RandomReader& file, Arena& arena, ParserTime& time)
      : file_(file),
        arena_(arena),
        time_(time),
        cpu_seconds_(seconds_for(file, time)),
        process_(program.path, kParserName, arguments_for(file, cpu_seconds_), program.silence) {}
  ~Conversation() { time_.spend(process_.end()); }
  Conversation(const Conversation&) = delete;
  Conversation& operator=(const Conversation&) = delete;

  FileFacts follow(const std::function<void(const Entry&)>& each) {
    while (true) {
      FrameHead head;
      receive(std::as_writable_bytes(std::span(&head, 1)));
      const std::span<const std::byte> payload = take_payload(head.bytes);
      switch (head.kind) {
        case FrameKind::kRead:
          serve(plain_of<ReadRequest>(payload));
          break;
        case FrameKind::kEntry:
          each(decode_entry(payload, file_.size(), arena_));
          break;
        case FrameKind::kSkipped:
          facts_.skipped.emplace_back(as_text(payload));
          break;
        case FrameKind::kDone: {
          const auto done = plain_of<FactsPayload>(payload);
          facts_.superblock_version = done.superblock_version;
          facts_.user_block_bytes = done.user_block_bytes;
          return std::move(facts_);
        }
        case FrameKind::kFailure:
          throw_failure(payload);
        default:
          throw_bad_answer("a frame of an unknown kind");
      }
    }
  }

 private:
  // The process's limits depend on the allocated bytes of the file, because a hole cannot describe anything.
  static std::int64_t seconds_for(const RandomReader& file, ParserTime& time) {
    time.earn(file.allocated_bytes(0, file.size()));
    const std::int64_t cpu_seconds = time.seconds_left();
    if (cpu_seconds == 0) throw_out_of_time();
    return cpu_seconds;
  }
  static std::vector<std::string> arguments_for(const RandomReader& file, std::int64_t cpu_seconds) {
    constexpr std::int64_t kMiB = 1 << 20;
    const std::int64_t held_mib = file.allocated_bytes(0, file.size()) / kMiB;
    const std::int64_t memory_mib = 256 + std::min<std::int64_t>(4 * held_mib, 4096);
    return {fmt::format("{}", file.size()), fmt::format("{}", cpu_seconds), fmt::format("{}", memory_mib * kMiB)};
  }

  [[noreturn]] static void throw_out_of_time() {
    throw Error(ErrorCode::kCorruption, "cannot read the HDF5 file: the files of this checkpoint take too much time")
        .of_kind(FindingKind::kBadHeader)
        .because("their parsers took all the processor time that files of their size may use");
  }
  [[noreturn]] void throw_ended() {
    Fate fate = process_.fate();
    if (fate.kind == Fate::Kind::kKilled && process_.end() >= std::chrono::seconds(cpu_seconds_)) fate = out_of_time();
    if (fate.kind == Fate::Kind::kKilled) {
      throw Error(ErrorCode::kResource, "cannot read the HDF5 file: its parser was killed by signal 9")
          .because("the system does that if memory is short; the file may be intact")
          .hint("run it again with more free memory");
    }
    if (fate.kind == Fate::Kind::kOutOfMemory) throw std::bad_alloc();
    if (fate.kind == Fate::Kind::kWithoutSandbox) {
      throw Error(ErrorCode::kUnsupported, "cannot read HDF5 files here: their parser cannot be confined")
          .because(fate.text)
          .hint("run it on a system or in a container that allows seccomp");
    }
    throw Error(ErrorCode::kCorruption, "cannot read the HDF5 file: the parser failed on it")
        .of_kind(FindingKind::kBadHeader)
        .because(fate.text);
  }

  void receive(std::span<std::byte> out) {
    if (!process_.receive(out)) throw_ended();
  }

  /// The buffer is used again by the next frame. Its bytes are charged, since the parser chooses the length.
  std::span<const std::byte> take_payload(std::uint32_t bytes) {
    arena_.charge(Charge::kBytes, bytes);
    if (payload_.size() < bytes) payload_.resize(bytes);
    const std::span<std::byte> payload = std::span(payload_).first(bytes);
    receive(payload);
    return payload;
  }

  template <class Plain>
  static Plain plain_of(std::span<const std::byte> payload) {
    Plain plain;
    if (payload.size() != sizeof plain) throw_bad_answer("a frame does not have the length of its kind");
    std::memcpy(&plain, payload.data(), sizeof plain);
    return plain;
  }

  /// Sends blocks of the file. The parser has no access to the file itself.
  void serve(const ReadRequest& request) {
    const std::int64_t all_blocks = boxes_along(file_.size(), kReadBlock);
    const auto first = static_cast<std::int64_t>(request.first_block);
    if (request.blocks == 0 || request.blocks > kMostReadBlocks || first < 0 || first > all_blocks ||
        request.blocks > all_blocks - first) {
      throw_bad_answer("a request outside the file");
    }
    const std::int64_t offset = first * kReadBlock;
    const std::int64_t count = std::min(request.blocks * kReadBlock, file_.size() - offset);
    for (std::int64_t block = first; block < first + request.blocks; ++block) {
      // The block was read before and is not kept. The parser's limit of CPU time limits the repetitions.
      if (!served_.insert(block)) continue;
      const std::int64_t bytes = std::min(kReadBlock, file_.size() - block * kReadBlock);
      arena_.earn(file_.allocated_bytes(block * kReadBlock, bytes));
      arena_.charge(Charge::kBytes, bytes);
    }
    block_.resize(static_cast<std::size_t>(count));
    file_.read_at(offset, block_);
    if (!process_.send(block_)) throw_ended();
  }

  const RandomReader& file_;
  Arena& arena_;
  ParserTime& time_;
  const std::int64_t cpu_seconds_;
  ParserProcess process_;
  FileFacts facts_{};
  std::vector<std::byte> payload_, block_;
  HashSet<std::int64_t> served_;
};

/// The program beside the library with this code. If the formats are inside one file, that program (formats/helper.h).
std::string path_of_parser() {
#ifdef SHARD_HDF5_INSIDE
  return helper_program();
#else
  static const char kHere = 0;
  return folder_of_code(&kHere) + "/" + kParserName;
#endif
}

}  // namespace

std::int64_t ParserTime::seconds_left() const {
  using std::chrono::microseconds;
  constexpr std::int64_t kMiB = 1 << 20;
  constexpr microseconds kFloor{2'000'000}, kPerMiB{500'000};
  const microseconds left = kFloor + kPerMiB * held_bytes_ / kMiB - spent_;
  if (left.count() <= 0) return 0;
  return std::max<std::int64_t>(1, std::chrono::round<std::chrono::seconds>(left).count());
}

FileFacts run_parser(const ParserProgram& program, const RandomReader& file, Arena& arena, ParserTime& time,
                     const std::function<void(const Entry&)>& each) {
  try {
    return Conversation(program, file, arena, time).follow(each);
  } catch (Error& error) {
    throw error.in_file(file.name());
  }
}

FileFacts parse_file(const RandomReader& file, Arena& arena, ParserTime& time,
                     const std::function<void(const Entry&)>& each) {
  return run_parser({path_of_parser()}, file, arena, time, each);
}

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
    for (const int to_all : {SIGINT, SIGTERM, SIGHUP}) sigaddset(&signals, to_all);  // Ctrl-C sends SIGINT to all.
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
  if (WIFSIGNALED(status)) {
    const int signal = WTERMSIG(status);
    if (signal == SIGXCPU) return out_of_time();
    if (signal == SIGKILL) return {Fate::Kind::kKilled, {}};
    return {Fate::Kind::kEnded, fmt::format("it crashed ({})", strsignal(signal))};
  }
  if (WIFEXITED(status) && WEXITSTATUS(status) == kExitOutOfTime) return out_of_time();
  if (WIFEXITED(status) && WEXITSTATUS(status) == kExitOutOfMemory) return {Fate::Kind::kOutOfMemory, "out of memory"};
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
      .because(fmt::format("it did not respond for {} s", silence_.count() / 1000));
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
  for (int turn = 0; turn < 100; ++turn) {
    siginfo_t info{};
    if (waitid(P_PID, static_cast<id_t>(process_), &info, WEXITED | WNOHANG | WNOWAIT) != 0 || info.si_pid != 0) {
      return fate_of(reap());
    }
    poll(nullptr, 0, 10);
  }
  end();  // It lives on with its end of the socket closed.
  return {Fate::Kind::kEnded, "it closed its socket before finishing its answer"};
}

}  // namespace shard::hdf5
