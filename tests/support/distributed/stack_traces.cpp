#include "tests/support/distributed/stack_traces.h"

#include <cxxabi.h>
#include <execinfo.h>
#include <semaphore.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <memory>
#include <sstream>

namespace shard::test {
namespace {

constexpr int kStackSignal = SIGUSR2;
constexpr long kAnswerNanoseconds = 500'000'000;

/// A request to one thread; the signal carries it.
struct StackRequest {
  StackRequest() { ::sem_init(&is_written, 0, 0); }
  ~StackRequest() {
    ::close(descriptor);
    ::sem_destroy(&is_written);
  }
  StackRequest(const StackRequest&) = delete;
  StackRequest& operator=(const StackRequest&) = delete;

  int descriptor = ::memfd_create("stack", MFD_CLOEXEC);
  sem_t is_written;
};

void write_stack(int descriptor) {
  std::array<void*, 64> frames;
  const int count = ::backtrace(frames.data(), static_cast<int>(frames.size()));
  ::backtrace_symbols_fd(frames.data(), count, descriptor);
}

void on_stack_signal(int, siginfo_t* info, void*) {
  if (info->si_code != SI_QUEUE) return;  // A signal from a different process.
  const int before = errno;
  auto* const request = static_cast<StackRequest*>(info->si_value.sival_ptr);
  write_stack(request->descriptor);
  ::sem_post(&request->is_written);
  errno = before;
}

/// False if the thread no longer exists.
bool send(StackRequest& request, pid_t thread) {
  siginfo_t info = {};
  info.si_code = SI_QUEUE;
  info.si_pid = ::getpid();
  info.si_uid = ::getuid();
  info.si_value.sival_ptr = &request;
  return ::syscall(SYS_rt_tgsigqueueinfo, ::getpid(), thread, kStackSignal, &info) == 0;
}

bool is_answered(StackRequest& request) {
  timespec limit = {};
  ::clock_gettime(CLOCK_REALTIME, &limit);
  limit.tv_nsec += kAnswerNanoseconds;
  limit.tv_sec += limit.tv_nsec / 1'000'000'000;
  limit.tv_nsec %= 1'000'000'000;
  while (::sem_timedwait(&request.is_written, &limit) != 0) {
    if (errno != EINTR) return false;
  }
  return true;
}

void on_fatal_signal(int number) {
  write_stack(STDERR_FILENO);
  ::raise(number);  // SA_RESETHAND: this time the signal ends the process.
}

/// "binary(_ZN1fEv+0x12) [0x...]" with the demangled name of the function.
std::string demangled(const std::string& line) {
  const std::size_t begin = line.find('(') + 1, end = line.find('+', begin);
  if (begin == 0 || end == std::string::npos || end == begin) return line;
  int status = 0;
  const std::unique_ptr<char, decltype(&std::free)> name(
      abi::__cxa_demangle(line.substr(begin, end - begin).c_str(), nullptr, nullptr, &status), &std::free);
  return status == 0 ? line.substr(0, begin) + name.get() + line.substr(end) : line;
}

std::string text_of(int descriptor) {
  std::string text(static_cast<std::size_t>(::lseek(descriptor, 0, SEEK_END)), '\0');
  text.resize(static_cast<std::size_t>(std::max<ssize_t>(0, ::pread(descriptor, text.data(), text.size(), 0))));
  std::istringstream lines(text);
  std::string result;
  for (std::string line; std::getline(lines, line);) result += demangled(line) + '\n';
  return result;
}

std::string stack_of(pid_t thread) {
  auto request = std::make_unique<StackRequest>();
  if (!send(*request, thread)) return "(has ended)\n";
  if (is_answered(*request)) return text_of(request->descriptor);
  request.release();  // Not freed, because the thread may still answer.
  return "(does not take signals)\n";
}

std::string name_of(const std::filesystem::path& task) {
  std::string name;
  std::getline(std::ifstream(task / "comm"), name);
  return name;
}

}  // namespace

std::string stacks_of_other_threads() {
  struct sigaction action = {};
  action.sa_sigaction = on_stack_signal;
  action.sa_flags = SA_RESTART | SA_SIGINFO;
  ::sigaction(kStackSignal, &action, nullptr);
  std::string result;
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
    const pid_t thread = std::stoi(task.path().filename());
    if (thread == ::gettid()) continue;
    result += "Thread " + std::to_string(thread) + " (" + name_of(task.path()) + "):\n" + stack_of(thread) + '\n';
  }
  return result;
}

void write_stack_on_fatal_signals() {
  std::array<void*, 1> frame;
  ::backtrace(frame.data(), 1);  // Loads libgcc now, because a handler must not do so.
  struct sigaction action = {};
  action.sa_handler = on_fatal_signal;
  action.sa_flags = static_cast<int>(SA_RESETHAND | SA_NODEFER);
  sigaddset(&action.sa_mask,
            SIGTERM);  // Blocks the parent's signal while the stack is written, because the crash would be lost.
  for (const int number : {SIGSEGV, SIGABRT, SIGBUS, SIGILL, SIGFPE}) ::sigaction(number, &action, nullptr);
}

}  // namespace shard::test
