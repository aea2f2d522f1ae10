/// \file A process that starts no threads, as in a container whose limit of them is reached.
#pragma once

#include <pthread.h>

#include <cstddef>

namespace shard::test {

/// While it lives, new threads have stacks for which there are no addresses, so that starting one fails.
class WithoutThreads {
 public:
  WithoutThreads() {
    ::pthread_getattr_default_np(&before_);
    pthread_attr_t large = before_;
    ::pthread_attr_setstacksize(&large, std::size_t{1} << 48);
    ::pthread_setattr_default_np(&large);
  }
  ~WithoutThreads() { ::pthread_setattr_default_np(&before_); }
  WithoutThreads(const WithoutThreads&) = delete;
  WithoutThreads& operator=(const WithoutThreads&) = delete;

 private:
  pthread_attr_t before_{};
};

}  // namespace shard::test
