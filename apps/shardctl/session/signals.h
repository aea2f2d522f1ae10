/// \file
/// SIGINT and SIGTERM as a stop token: the first asks the work to stop and clean up, the second ends the process.
#pragma once

#include <atomic>
#include <csignal>
#include <stop_token>
#include <thread>

namespace shard::app {

/// A thread waits for the signals, so that nothing runs inside a handler. Ignores SIGPIPE and SIGXFSZ (both then
/// show as failing writes). Made first in main: threads that start later inherit the mask.
class SignalWatch {
 public:
  SignalWatch();
  ~SignalWatch();
  SignalWatch(const SignalWatch&) = delete;
  SignalWatch& operator=(const SignalWatch&) = delete;

  std::stop_token token() const { return stop_.get_token(); }
  int signal() const { return signal_.load(); }  ///< The first one, or 0.
  /// From now on the first signal ends the process too: nothing has to be cleaned up.
  void end_at_once() { at_once_ = true; }
  /// From now on no message is printed for a signal.
  void mute() { mute_ = true; }

 private:
  void wait();

  sigset_t signals_{};
  std::stop_source stop_;
  std::atomic<int> signal_{0};
  std::atomic<bool> at_once_{false}, mute_{false}, over_{false};
  std::thread thread_;
};

}  // namespace shard::app
