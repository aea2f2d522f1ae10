#include "apps/shardctl/session/signals.h"

#include <pthread.h>
#include <unistd.h>

#include <cstdlib>
#include <string_view>

namespace shard::app {

SignalWatch::SignalWatch() {
  std::signal(SIGPIPE, SIG_IGN);
  std::signal(SIGXFSZ, SIG_IGN);
  sigemptyset(&signals_);
  sigaddset(&signals_, SIGINT);
  sigaddset(&signals_, SIGTERM);
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
    if (at_once_ || signal_ != 0) _exit(128 + number);
    signal_ = number;
    if (number == SIGINT && !mute_) {  // SIGTERM comes from programs such as launchers, which need no advice.
      constexpr std::string_view kText = "\nshardctl: stopping and cleaning up; press Ctrl-C again to stop at once\n";
      [[maybe_unused]] const auto told = write(STDERR_FILENO, kText.data(), kText.size());
    }
    stop_.request_stop();
  }
}

}  // namespace shard::app
