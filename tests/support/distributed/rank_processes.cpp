#include "tests/support/distributed/rank_processes.h"

#include <c10/util/StringUtil.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <iostream>
#include <system_error>
#include <utility>

#include "tests/support/distributed/environment.h"
#include "tests/support/distributed/multi_process_test.h"
#include "tests/support/distributed/rank_messages.h"
#include "tests/support/distributed/rank_starter.h"
#include "tests/support/distributed/skips.h"

namespace shard::test {
namespace {

using Clock = std::chrono::steady_clock;
using namespace std::chrono_literals;

std::string process(int rank) { return c10::str("Process ", rank); }

std::string seconds(std::chrono::duration<double> time) { return c10::str(time.count(), " seconds"); }

std::string join(const std::vector<std::string>& texts) {
  std::string result;
  for (const std::string& text : texts) result += text + '\n';
  return result;
}

bool died_of_signal(const RankResult& rank) { return rank.exit_code && *rank.exit_code < 0; }

/// Minus the signal of a crash before the parent's signal; nothing if there was no crash.
std::optional<int> own_signal(int status, int sent) {
  if (!WIFSIGNALED(status) || WTERMSIG(status) == SIGTERM || WTERMSIG(status) == sent) return std::nullopt;
  return -WTERMSIG(status);
}

bool failed_and_ended(const RankResult& rank) { return rank.exit_code == kTestErrorExitCode || died_of_signal(rank); }

std::string failure_text(const RankResult& rank) {
  std::string how = " failed before it was terminated:\n";
  if (died_of_signal(rank)) {
    const int number = -*rank.exit_code;
    how = c10::str(" was ended by signal ", number, " (", ::strsignal(number), ")\n");
  } else if (rank.exit_code) {
    how = c10::str(" exited with error code ", *rank.exit_code, " and exception:\n");
  }
  return process(rank.rank) + how + join(rank.failures);
}

/// Ranks that died of a signal come first, because they cause the others' failures.
std::string failures_in_order(std::span<const RankResult> all) {
  std::vector<RankResult> ranks(all.begin(), all.end());
  std::erase_if(ranks, [](const RankResult& rank) { return rank.failures.empty() && !failed_and_ended(rank); });
  std::ranges::stable_sort(
      ranks, {}, [](const RankResult& rank) { return std::pair(!died_of_signal(rank), rank.first_failure_ns); });
  std::string text;
  for (const RankResult& rank : ranks) text += failure_text(rank);
  return text;
}

std::string unfinished_ranks(std::span<const RankResult> ranks, std::chrono::duration<double> elapsed,
                             const std::string& how) {
  std::string text;
  for (const RankResult& rank : ranks) {
    if (!rank.exit_code) text += process(rank.rank) + how + seconds(elapsed) + '\n';
  }
  return text;
}

constexpr std::string_view kRunnersOwn =
    "GTEST_";  // GoogleTest's filter, report file and so on are for the parent only.

std::vector<std::string> environment_of_rank(int rank, int world_size, const std::string& file_name) {
  std::vector<std::string> variables = {c10::str(kRankVariable, '=', rank), c10::str(kFileVariable, '=', file_name)};
  for (char** each = environ; *each != nullptr; ++each) {
    if (!std::string_view(*each).starts_with(kRunnersOwn)) variables.emplace_back(*each);
  }
  if (!variable("WORLD_SIZE")) variables.push_back(c10::str("WORLD_SIZE=", world_size));
  return variables;
}

std::vector<std::string> arguments_of_rank() {
  const ::testing::TestInfo* const test = ::testing::UnitTest::GetInstance()->current_test_info();
  return {"/proc/self/exe", c10::str("--gtest_filter=", test->test_suite_name(), '.', test->name()),
          "--gtest_also_run_disabled_tests"};
}

/// Arguments for exec; they point into `words`.
std::vector<char*> pointers(std::vector<std::string>& words) {
  std::vector<char*> result;
  for (std::string& word : words) result.push_back(word.data());
  result.push_back(nullptr);
  return result;
}

/// Starts this program again, with `socket` under the same number.
pid_t exec_rank(std::vector<std::string> arguments, std::vector<std::string> variables, int socket) {
  variables.push_back(c10::str(kSocketVariable, '=', socket));
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, socket, socket);  // The same number: it stays open.
  pid_t pid = 0;
  const int error =
      ::posix_spawn(&pid, "/proc/self/exe", &actions, nullptr, pointers(arguments).data(), pointers(variables).data());
  posix_spawn_file_actions_destroy(&actions);
  if (error != 0) throw std::system_error(error, std::generic_category(), "posix_spawn");
  return pid;
}

Verdict verdict_of_common_code(const RankResult& rank) {
  if (const TestSkip* const skip = find_test_skip(*rank.exit_code)) {
    const std::string text(skip->message);
    const bool is_generic = skip->key == "generic" && !rank.skip_reason.empty();
    if (!in_sandcastle()) return {Verdict::Kind::kSkip, is_generic ? text + ": " + rank.skip_reason : text};
    std::cerr << "Skipping " << MultiProcessTestCase::current_test_name()
              << " on sandcastle for the following reason: " << text << '\n';
    return {};
  }
  if (rank.exit_code == 0) return {};
  return {Verdict::Kind::kFail, c10::str("Expected zero exit code but got ", *rank.exit_code, " for pid: ", rank.pid)};
}

}  // namespace

Verdict check_return_codes(std::span<const RankResult> ranks, std::chrono::duration<double> elapsed) {
  if (ranks.empty()) {
    std::cerr << "Note: no subprocesses were spawned, test was likely skipped.\n";
    return {};
  }
  const std::string failures = failures_in_order(ranks);
  if (std::ranges::any_of(ranks, failed_and_ended)) return {Verdict::Kind::kFail, failures};
  const std::string unfinished = unfinished_ranks(ranks, elapsed, " terminated or timed out after ");
  if (!unfinished.empty()) return {Verdict::Kind::kFail, failures + unfinished};
  for (const RankResult& rank : ranks) {
    if (rank.exit_code == ranks[0].exit_code) continue;
    return {Verdict::Kind::kFail, c10::str("Expect process ", rank.rank, " exit code to match Process 0 exit code of ",
                                           *ranks[0].exit_code, ", but got ", *rank.exit_code)};
  }
  return verdict_of_common_code(ranks[0]);
}

Verdict check_no_test_errors(std::span<const RankResult> ranks, std::chrono::duration<double> elapsed) {
  std::string text = unfinished_ranks(ranks, elapsed, " timed out after ");
  for (const RankResult& rank : ranks) {
    if (rank.exit_code == kTestErrorExitCode) text += failure_text(rank);
  }
  return text.empty() ? Verdict{} : Verdict{Verdict::Kind::kFail, text};
}

struct RankProcesses::Process {
  RankResult result;
  int socket = -1;  ///< -1 if closed.
  bool running = true;
  std::string received{};  ///< Bytes of an incomplete message.
  std::optional<std::string> stacks{};

  void take(const Message& message);
  /// Reads one piece, if there is one. True if there may be more.
  bool read_socket();
  /// Reads remaining data after the end, and closes. Does not wait for a descendant that has the other end.
  void ended(std::optional<int> exit_code);
};

void RankProcesses::Process::take(const Message& message) {
  switch (message.kind) {
    case Message::Kind::kFailure:
      if (result.failures.empty()) result.first_failure_ns = message.time_ns;
      result.failures.push_back(message.text);
      break;
    case Message::Kind::kSkipReason:
      result.skip_reason = message.text;
      break;
    case Message::Kind::kStacks:
      stacks = message.text;
      break;
  }
}

bool RankProcesses::Process::read_socket() {
  std::array<char, 65536> part;
  const ssize_t bytes = ::recv(socket, part.data(), part.size(), MSG_DONTWAIT);
  if (bytes > 0) {
    received.append(part.data(), static_cast<std::size_t>(bytes));
    while (const std::optional<Message> message = take_message(received)) take(*message);
    return true;
  }
  if (bytes < 0 && errno == EINTR) return true;
  if (bytes < 0 && errno == EAGAIN) return false;
  ::close(socket);
  socket = -1;
  return false;
}

void RankProcesses::Process::ended(std::optional<int> exit_code) {
  running = false;
  result.exit_code = exit_code;
  if (socket < 0) return;
  while (read_socket()) continue;
  if (socket >= 0) ::close(std::exchange(socket, -1));
}

RankProcesses::RankProcesses(int world_size, const std::string& file_name) {
  for (int rank = 0; rank < world_size; ++rank) start(rank, world_size, file_name);
}

RankProcesses::~RankProcesses() { terminate(/*failed=*/false); }

void RankProcesses::start(int rank, int world_size, const std::string& file_name) {
  std::array<int, 2> sockets;
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sockets.data()) != 0) {
    throw std::system_error(errno, std::generic_category(), "socketpair");
  }
  Process started;
  started.socket = sockets[0];
  try {
    const std::vector<std::string> arguments = arguments_of_rank();
    const std::vector<std::string> variables = environment_of_rank(rank, world_size, file_name);
    const std::optional<pid_t> forked = fork_rank(arguments, variables, kSocketVariable, sockets[1]);
    started.result.pid = forked ? *forked : exec_rank(arguments, variables, sockets[1]);
  } catch (...) {
    for (const int each : sockets) ::close(each);
    throw;
  }
  ::close(sockets[1]);
  started.result.rank = rank;
  log_info(c10::str("Started process ", rank, " with pid ", started.result.pid));
  processes_.push_back(std::move(started));
}

void RankProcesses::receive(std::chrono::milliseconds at_most) {
  std::vector<pollfd> sockets;
  std::vector<Process*> owners;
  for (Process& each : processes_) {
    if (each.socket < 0) continue;
    sockets.push_back({each.socket, POLLIN, 0});
    owners.push_back(&each);
  }
  // Also waits without sockets, for processes that have closed theirs and are ending.
  ::poll(sockets.data(), sockets.size(), static_cast<int>(at_most.count()));
  for (std::size_t i = 0; i < sockets.size(); ++i) {
    if (sockets[i].revents != 0) owners[i]->read_socket();
  }
}

void RankProcesses::reap() {
  for (Process& each : processes_) {
    int status = 0;
    if (!each.running || ::waitpid(each.result.pid, &status, WNOHANG) != each.result.pid) continue;
    each.ended(WIFSIGNALED(status) ? -WTERMSIG(status) : WEXITSTATUS(status));
  }
}

bool RankProcesses::all_ended() const {
  return std::ranges::none_of(processes_, [](const Process& each) { return each.running; });
}

const RankProcesses::Process* RankProcesses::first_failed(bool signals_are_failures) const {
  const auto failed = std::ranges::find_if(processes_, [&](const Process& each) {
    return each.result.exit_code == kTestErrorExitCode || (signals_are_failures && died_of_signal(each.result));
  });
  return failed == processes_.end() ? nullptr : &*failed;
}

void RankProcesses::join(std::chrono::milliseconds timeout, bool signals_are_failures) {
  const Clock::time_point begin = Clock::now();
  const Process* failed = nullptr;
  for (reap(); !all_ended(); reap()) {
    if ((failed = first_failed(signals_are_failures)) != nullptr) {
      std::cerr << process(failed->result.rank) << " terminated with exit code " << *failed->result.exit_code
                << ", terminating remaining processes.\n";
      break;
    }
    if (Clock::now() - begin > timeout) {
      show_stacks();
      std::cerr << "Timing out after " << seconds(timeout) << " and killing subprocesses.\n";
      break;
    }
    receive(std::min(100ms, timeout));
  }
  elapsed_ = Clock::now() - begin;
  terminate(failed != nullptr);
}

std::vector<RankResult> RankProcesses::results() const {
  std::vector<RankResult> results;
  for (const Process& each : processes_) results.push_back(each.result);
  return results;
}

void RankProcesses::show_stacks() {
  for (const Process& each : processes_) {
    if (each.running) ::send(each.socket, &kGetTraceback, 1, MSG_NOSIGNAL | MSG_DONTWAIT);
  }
  const auto is_awaited = [](const Process& each) { return each.running && each.socket >= 0 && !each.stacks; };
  for (const Clock::time_point limit = Clock::now() + 5s; Clock::now() < limit; reap()) {
    if (std::ranges::none_of(processes_, is_awaited)) break;
    receive(100ms);
  }
  for (const Process& each : processes_) {
    if (each.stacks) {
      std::cerr << process(each.result.rank) << " timed out with traceback:\n\n" << *each.stacks << '\n';
    } else if (each.running && each.socket < 0) {
      std::cerr << "Pipe closed for process " << each.result.rank << ", cannot retrieve traceback\n";
    } else if (each.running) {
      std::cerr << "Could not retrieve traceback for timed out process: " << each.result.rank << '\n';
    }
  }
}

void RankProcesses::terminate(bool failed) {
  reap();  // A process that has already ended has its own code.
  for (const Process& each : processes_) {
    if (each.running) ::kill(each.result.pid, SIGTERM);
  }
  const Clock::time_point limit = Clock::now() + 3s;
  for (Process& each : processes_) {
    if (!each.running) continue;
    int status = 0, sent = SIGTERM;
    while (::waitpid(each.result.pid, &status, WNOHANG) == 0) {
      if (Clock::now() > limit) ::kill(each.result.pid, sent = SIGKILL);
      ::poll(nullptr, 0, 10);
    }
    each.ended(failed ? own_signal(status, sent) : std::nullopt);
  }
}

}  // namespace shard::test
