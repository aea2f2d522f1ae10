// The rank's end of rank_processes.h.
#include <c10/util/StringUtil.h>
#include <cxxabi.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <mutex>
#include <thread>

#include "tests/support/distributed/environment.h"
#include "tests/support/distributed/multi_process_test.h"
#include "tests/support/distributed/rank_messages.h"
#include "tests/support/distributed/rank_processes.h"
#include "tests/support/distributed/skips.h"
#include "tests/support/distributed/stack_traces.h"

namespace shard::test {
namespace {

/// Threads: any.
class Parent {
 public:
  explicit Parent(const RankContext& context) : socket_(context.socket) {}

  void tell(Message::Kind kind, const std::string& text) {
    const std::lock_guard lock(mutex_);
    const std::string bytes = encode({kind, std::chrono::steady_clock::now().time_since_epoch().count(), text});
    for (std::size_t sent = 0; sent < bytes.size();) {
      const ssize_t count = ::send(socket_, bytes.data() + sent, bytes.size() - sent, MSG_NOSIGNAL);
      if (count <= 0) return;  // The parent is gone, and this process will end soon.
      sent += static_cast<std::size_t>(count);
    }
  }
  int socket() const { return socket_; }

 private:
  int socket_;
  std::mutex mutex_;
};

/// Sends GoogleTest's failures when they happen, because a rank may get stuck before it ends. Called under GoogleTest's
/// lock.
class TellFailures : public ::testing::EmptyTestEventListener {
 public:
  explicit TellFailures(Parent& parent) : parent_(parent) {}

  void OnTestPartResult(const ::testing::TestPartResult& result) override {
    if (!result.failed()) return;
    const char* const file = result.file_name() == nullptr ? "" : result.file_name();
    parent_.tell(Message::Kind::kFailure, c10::str(file, ':', result.line_number(), ": ", result.message()));
  }

 private:
  Parent& parent_;
};

Parent& parent_of(const RankContext& context) {
  static Parent parent(context);
  return parent;
}

/// Answers the parent on a separate thread during its lifetime.
class EventListener {
 public:
  EventListener(int rank, Parent& parent)
      : rank_(rank), parent_(parent), stop_(::eventfd(0, EFD_CLOEXEC)), thread_([this] { listen(); }) {}
  ~EventListener() {
    ::eventfd_write(stop_, 1);
    thread_.join();
    ::close(stop_);
  }
  EventListener(const EventListener&) = delete;
  EventListener& operator=(const EventListener&) = delete;

 private:
  void listen() {
    log_info(c10::str("Starting event listener thread for rank ", rank_));
    while (true) {
      std::array<pollfd, 2> sources = {pollfd{parent_.socket(), POLLIN, 0}, pollfd{stop_, POLLIN, 0}};
      if (::poll(sources.data(), sources.size(), -1) < 0) continue;  // Interrupted.
      if (sources[1].revents != 0) return;
      char event = 0;
      if (::recv(parent_.socket(), &event, 1, 0) != 1) {
        return log_info(c10::str("Pipe closed for process ", rank_, ", stopping event listener thread"));
      }
      log_info(c10::str("Received event ", static_cast<int>(event), " on process ", rank_));
      if (event == kGetTraceback) parent_.tell(Message::Kind::kStacks, stacks_of_other_threads());
    }
  }

  int rank_;
  Parent& parent_;
  int stop_;
  std::thread thread_;
};

const ::testing::TestResult& result_of_test() {
  return *::testing::UnitTest::GetInstance()->current_test_info()->result();
}

int failed(const RankContext& context, const std::string& text) {
  parent_of(context).tell(Message::Kind::kFailure, text);
  log_info(c10::str("Caught exception: \n", text, " exiting process ", context.rank,
                    " with exit code: ", kTestErrorExitCode));
  return kTestErrorExitCode;
}

int skipped(const RankContext& context, const std::string& why, int exit_code) {
  parent_of(context).tell(Message::Kind::kSkipReason, why);
  // One write, so that lines of several ranks do not mix.
  std::cerr << c10::str("Process ", context.rank, " skipping test ", MultiProcessTestCase::current_test_name(),
                        " for following reason: ", why, "\n");
  return exit_code;
}

/// The argument of GTEST_SKIP.
std::string reason_of_skip(const ::testing::TestResult& result) {
  for (int part = 0; part < result.total_part_count(); ++part) {
    if (result.GetTestPartResult(part).skipped()) return result.GetTestPartResult(part).message();
  }
  return "";
}

std::string type_name(const std::exception& error) {
  int status = 0;
  const std::unique_ptr<char, decltype(&std::free)> name(
      abi::__cxa_demangle(typeid(error).name(), nullptr, nullptr, &status), &std::free);
  return status == 0 ? name.get() : typeid(error).name();
}

/// The exit code for an exception of `body`, or 0. GoogleTest knows reported skips and failures.
int code_of(const RankContext& context, const std::function<void()>& body) {
  try {
    body();
  } catch (const Skip& skip) {
    return skipped(context, skip.what(), skip.exit_code());
  } catch (const ExitRequest& request) {
    return request.exit_code;
  } catch (const std::exception& error) {
    return failed(context, type_name(error) + ": " + error.what());
  } catch (...) {
    return failed(context, "an exception not derived from std::exception");
  }
  if (!result_of_test().Skipped()) return 0;
  return skipped(context, reason_of_skip(result_of_test()), test_skip("generic").exit_code);
}

}  // namespace

const std::optional<RankContext>& rank_context() {
  static const std::optional<RankContext> context = []() -> std::optional<RankContext> {
    if (!variable(kRankVariable)) return std::nullopt;
    return RankContext{number_variable(kRankVariable, 0), variable(kFileVariable).value_or(""),
                       number_variable(kSocketVariable, -1)};
  }();
  return context;
}

void become_rank(const RankContext& context) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  ::fcntl(context.socket, F_SETFD, FD_CLOEXEC);  // Programs that the rank starts are not ranks.
  write_stack_on_fatal_signals();
  ::setenv("TORCH_SHOW_CPP_STACKTRACES", "1", 0);
  ::testing::TestEventListeners& listeners = ::testing::UnitTest::GetInstance()->listeners();
  delete listeners.Release(listeners.default_result_printer());
  listeners.Append(new TellFailures(parent_of(context)));
}

void run_rank_and_exit(const RankContext& context, const std::function<void()>& body) {
  int code = 0;
  {
    const EventListener listener(context.rank, parent_of(context));
    code = code_of(context, body);
    if (result_of_test().Failed()) code = kTestErrorExitCode;
  }
  std::cout.flush();
  std::cerr.flush();
  std::fflush(nullptr);
  ::_exit(code);  // Does not wait for threads of remaining groups.
}

std::string encode(const Message& message) {
  std::string bytes(1, static_cast<char>(message.kind));
  const auto size = static_cast<std::uint64_t>(message.text.size());
  bytes.append(reinterpret_cast<const char*>(&message.time_ns), sizeof message.time_ns);
  bytes.append(reinterpret_cast<const char*>(&size), sizeof size);
  return bytes + message.text;
}

std::optional<Message> take_message(std::string& bytes) {
  constexpr std::size_t kHeader = 1 + sizeof(std::int64_t) + sizeof(std::uint64_t);
  if (bytes.size() < kHeader) return std::nullopt;
  Message message{static_cast<Message::Kind>(bytes[0]), 0, {}};
  std::uint64_t size = 0;
  std::memcpy(&message.time_ns, bytes.data() + 1, sizeof message.time_ns);
  std::memcpy(&size, bytes.data() + 1 + sizeof message.time_ns, sizeof size);
  if (bytes.size() - kHeader < size) return std::nullopt;
  message.text = bytes.substr(kHeader, size);
  bytes.erase(0, kHeader + size);
  return message;
}

void log_info(const std::string& line) {
  if (variable("TORCH_CPP_LOG_LEVEL") == "INFO") std::cerr << line << '\n';
}

}  // namespace shard::test
