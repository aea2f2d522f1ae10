#include "tests/support/distributed/stack_traces.h"

#include <cxxabi.h>
#include <execinfo.h>
#include <semaphore.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <atomic>
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

// A signal's handler has nothing else to get at.
std::atomic<int> stack_descriptor = -1;
sem_t stack_is_written;

void write_stack(int descriptor) {
  std::array<void*, 64> frames;
  const int count = ::backtrace(frames.data(), static_cast<int>(frames.size()));
  ::backtrace_symbols_fd(frames.data(), count, descriptor);
}

void on_stack_signal(int) {
  const int before = errno;
  if (const int descriptor = stack_descriptor; descriptor >= 0) {
    write_stack(descriptor);
    ::sem_post(&stack_is_written);
  }
  errno = before;
}

void on_fatal_signal(int number) {
  write_stack(STDERR_FILENO);
  ::raise(number);  // SA_RESETHAND: this time it ends the process.
}

void handle(int number, void (*handler)(int), int flags) {
  struct sigaction action = {};
  action.sa_handler = handler;
  action.sa_flags = flags;
  ::sigaction(number, &action, nullptr);
}

/// "binary(_ZN1fEv+0x12) [0x...]" with the function's name as it is written in C++.
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
  const int memory = ::memfd_create("stack", MFD_CLOEXEC);
  stack_descriptor = memory;
  std::string result = "(does not take signals)\n";
  if (::tgkill(::getpid(), thread, kStackSignal) == 0) {
    timespec limit = {};
    ::clock_gettime(CLOCK_REALTIME, &limit);
    limit.tv_nsec += kAnswerNanoseconds;
    limit.tv_sec += limit.tv_nsec / 1'000'000'000;
    limit.tv_nsec %= 1'000'000'000;
    if (::sem_timedwait(&stack_is_written, &limit) == 0) result = text_of(memory);
  }
  stack_descriptor = -1;
  ::close(memory);
  return result;
}

std::string name_of(const std::filesystem::path& task) {
  std::string name;
  std::getline(std::ifstream(task / "comm"), name);
  return name;
}

}  // namespace

std::string stacks_of_other_threads() {
  ::sem_init(&stack_is_written, 0, 0);
  handle(kStackSignal, on_stack_signal, SA_RESTART);
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
  ::backtrace(frame.data(), 1);  // Loads libgcc now, which a handler must not do.
  for (const int number : {SIGSEGV, SIGABRT, SIGBUS, SIGILL, SIGFPE}) {
    handle(number, on_fatal_signal, static_cast<int>(SA_RESETHAND | SA_NODEFER));
  }
}

}  // namespace shard::test
