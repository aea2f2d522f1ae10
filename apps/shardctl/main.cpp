/// \file
/// The process around the program: signals, standard streams, the environment.
#include <fcntl.h>
#include <fmt/format.h>
#include <malloc.h>
#include <poll.h>
#include <pthread.h>
#include <sys/resource.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <exception>
#include <iostream>
#include <new>
#include <optional>
#include <ostream>
#include <span>
#include <stop_token>
#include <streambuf>
#include <string>
#include <string_view>
#include <system_error>
#include <thread>

#include "apps/shardctl/app.h"
#include "apps/shardctl/render/report.h"
#include "formats/helper.h"
#include "libshard/core/error.h"
#include "libshard/io/local_disk.h"
#include "libshard/io/page_cache.h"

namespace shard::app {
namespace {

/// Turns SIGINT, SIGTERM and SIGHUP into a stop token. The first signal asks the work to stop and clean up; the second
/// ends the process, unless it is SIGHUP, because kernel and shell both send one when a terminal is closed. SIGHUP
/// stays ignored under nohup. A thread waits for the signals, so that no work runs inside a handler. Ignores SIGPIPE
/// and SIGXFSZ, which then appear as failing writes. main creates it first, because threads inherit the signal mask.
class SignalWatch {
 public:
  SignalWatch();
  ~SignalWatch();
  SignalWatch(const SignalWatch&) = delete;
  SignalWatch& operator=(const SignalWatch&) = delete;

  std::stop_token token() const { return stop_.get_token(); }
  int signal() const { return signal_.load(); }  ///< The first signal, or 0.
  /// From now on, even the first signal ends the process, because there is nothing to clean up.
  void end_at_once() { at_once_ = true; }
  /// From now on, signals print no message.
  void mute() { mute_ = true; }

 private:
  void wait();

  sigset_t signals_{};
  std::stop_source stop_;
  std::atomic<int> signal_{0};
  std::atomic<bool> at_once_{false}, mute_{false}, over_{false};
  std::thread thread_;
};

SignalWatch::SignalWatch() {
  std::signal(SIGPIPE, SIG_IGN);
  std::signal(SIGXFSZ, SIG_IGN);
  sigemptyset(&signals_);
  sigaddset(&signals_, SIGINT);
  sigaddset(&signals_, SIGTERM);
  struct sigaction hangup {};
  if (sigaction(SIGHUP, nullptr, &hangup) == 0 && hangup.sa_handler != SIG_IGN) sigaddset(&signals_, SIGHUP);
  pthread_sigmask(SIG_BLOCK, &signals_, nullptr);
  thread_ = std::thread([this] { wait(); });
}

SignalWatch::~SignalWatch() {
  over_ = true;
  pthread_kill(thread_.native_handle(), SIGTERM);
  thread_.join();
}

void SignalWatch::wait() {
  while (true) {
    int number = 0;
    if (sigwait(&signals_, &number) != 0 || over_) return;
    if (!at_once_ && signal_ != 0 && number == SIGHUP) continue;
    if (at_once_ || signal_ != 0) _exit(128 + number);
    signal_ = number;
    if (number == SIGINT && !mute_) {  // SIGTERM comes from programs such as launchers, which need no advice.
      constexpr std::string_view kText = "\nshardctl: stopping and cleaning up; press Ctrl-C again to stop at once\n";
      [[maybe_unused]] const auto told = write(STDERR_FILENO, kText.data(), kText.size());
    }
    stop_.request_stop();
  }
}

/// A stream buffer over a file descriptor. Unlike standard streams it remembers why a write failed, and waits for the
/// reader of a pipe that another process has set to O_NONBLOCK. It is unbuffered, because TextSink buffers, and it does
/// not close the descriptor.
class DescriptorBuffer : public std::streambuf {
 public:
  explicit DescriptorBuffer(int descriptor) : descriptor_(descriptor) {}
  int error() const { return error_; }  ///< errno of the first failed write, or 0.

 protected:
  int_type overflow(int_type c) override {
    const char byte = traits_type::to_char_type(c);
    return xsputn(&byte, 1) == 1 ? c : traits_type::eof();
  }
  std::streamsize xsputn(const char* data, std::streamsize bytes) override {
    std::streamsize done = 0;
    while (done < bytes) {
      const ssize_t written = write(descriptor_, data + done, static_cast<std::size_t>(bytes - done));
      if (written < 0 && errno == EINTR) continue;
      if (written < 0 && errno == EAGAIN) {
        pollfd room{.fd = descriptor_, .events = POLLOUT, .revents = 0};
        poll(&room, 1, -1);
        continue;
      }
      if (written < 0) {
        if (error_ == 0) error_ = errno;
        break;
      }
      done += written;
    }
    return done;
  }

 private:
  int descriptor_;
  int error_ = 0;
};

#ifdef SHARD_TEST_HOOKS
/// A hook for failure tests (tests/launched/README.md): an observer of steps. `hold` is the value of
/// SHARDCTL_TEST_HOLD, STEP:RANK:FILE. Before that step, that rank writes its process id to FILE, and continues when
/// FILE is removed.
std::function<void(int rank, std::string_view step)> hold_step(LocalDisk& fs, std::string hold) {
  return [&fs, hold = std::move(hold)](int rank, std::string_view step) {
    const std::string mine = fmt::format("{}:{}:", step, rank);
    if (!hold.starts_with(mine)) return;
    const std::string file = hold.substr(mine.size()), unnamed = file + ".new";
    const std::string text = fmt::format("{}\n", getpid());
    const auto writer = fs.create(unnamed);
    writer->write_at(0, std::as_bytes(std::span(text)));
    writer->close();
    fs.rename_new(unnamed, file);
    while (fs.exists(file)) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  };
}
#endif

std::optional<std::string> environment(const std::string& name) {
  const char* value = std::getenv(name.c_str());
  return value == nullptr ? std::nullopt : std::optional<std::string>(value);
}

/// Opens /dev/null for standard streams that are closed. Otherwise a file of the job would get the number of one, and
/// receive its text. Like a closed stream, this one fails when it is written or read.
void fill_closed_streams() {
  for (const int stream : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (::fcntl(stream, F_GETFD) >= 0) continue;
    [[maybe_unused]] const int opened = ::open("/dev/null", stream == STDIN_FILENO ? O_WRONLY : O_RDONLY);
  }
}

/// Keeps freed buffers of up to 4 MiB for the next ones. By default, glibc gives the pages of a thread's buffers back
/// each time that they are freed, which costs more than inflating the data itself.
void keep_freed_buffers() {
  mallopt(M_MMAP_THRESHOLD, 4 << 20);
  mallopt(M_TRIM_THRESHOLD, 16 << 20);
}

/// All files of an output are open at one time. The soft limit is low for programs that call select().
void raise_limit_of_open_files() {
  rlimit files{};
  if (::getrlimit(RLIMIT_NOFILE, &files) != 0) return;
  files.rlim_cur = files.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &files);
}

int end_without_resources() {
  constexpr std::string_view kText = "shardctl: error: out of memory or threads\n";
  [[maybe_unused]] const auto told = write(STDERR_FILENO, kText.data(), kText.size());
  return exit_code_for(ErrorCode::kResource);
}

/// Reports a lack of memory or threads in a thread of a library, such as Gloo, which lets the exception end the
/// process.
void report_uncaught_shortage() {
  static const std::terminate_handler otherwise = std::set_terminate([] {
    try {
      if (const std::exception_ptr failure = std::current_exception()) std::rethrow_exception(failure);
    } catch (const std::bad_alloc&) {
      _exit(end_without_resources());
    } catch (const std::system_error& error) {
      if (error.code() == std::errc::resource_unavailable_try_again) _exit(end_without_resources());
      otherwise();
    } catch (...) {
      otherwise();
    }
    otherwise();
  });
}

int run_process(int argc, char** argv) {
  fill_closed_streams();
  raise_limit_of_open_files();
  keep_freed_buffers();
  spare_page_cache();
  report_uncaught_shortage();
  SignalWatch signals;
  DescriptorBuffer buffer(STDOUT_FILENO);
  std::ostream out(&buffer);
  Session session{posix_disk(),
                  out,
                  std::cerr,
                  isatty(STDOUT_FILENO) == 1,
                  isatty(STDERR_FILENO) == 1,
                  environment,
                  signals.token(),
                  [&signals] { return signals.signal(); },
                  [&buffer] { return buffer.error(); },
                  [&signals] { signals.end_at_once(); },
                  [&signals] { signals.mute(); }};
#ifdef SHARD_TEST_HOOKS
  if (auto hold = environment("SHARDCTL_TEST_HOLD")) session.on_step = hold_step(session.fs, *std::move(hold));
#endif
  return app::run({argv + 1, argv + argc}, session);
}

}  // namespace
}  // namespace shard::app

int main(int argc, char** argv) {
  if (const std::optional<int> code = shard::run_as_helper({argv, static_cast<std::size_t>(argc)})) return *code;
  try {
    return shard::app::run_process(argc, argv);
  } catch (const std::exception&) {  // Not enough memory to report it, or no thread that waits for signals.
    return shard::app::end_without_resources();
  }
}
