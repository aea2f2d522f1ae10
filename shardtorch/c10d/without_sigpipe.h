/// \file
/// Writes to closed connections as errors. Inside shardtorch only.
///
/// Gloo and TensorPipe write to sockets without MSG_NOSIGNAL. If the other rank died or closed the connection, the
/// kernel sends SIGPIPE, which ends the process before an error can be reported. (Python ignores the signal.)
#pragma once

#include <csignal>
#include <ctime>

namespace shard {

/// Blocks SIGPIPE in this thread, and in threads that are created while it lives. The process's handler is unchanged.
class WithoutSigpipe {
 public:
  WithoutSigpipe() {
    sigset_t pending;
    sigpending(&pending);
    was_pending_ = sigismember(&pending, SIGPIPE) == 1;
    sigemptyset(&pipe_);
    sigaddset(&pipe_, SIGPIPE);
    pthread_sigmask(SIG_BLOCK, &pipe_, &before_);
  }
  /// Drops a signal that came meanwhile.
  ~WithoutSigpipe() {
    constexpr timespec kNoWait{};
    if (!was_pending_) sigtimedwait(&pipe_, nullptr, &kNoWait);
    pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }
  WithoutSigpipe(const WithoutSigpipe&) = delete;
  WithoutSigpipe& operator=(const WithoutSigpipe&) = delete;

 private:
  sigset_t pipe_{}, before_{};
  bool was_pending_ = false;
};

}  // namespace shard
