#pragma once
// An inline member of c10d's header that we never call uses this: see rendezvous/store.h.

#include <chrono>

namespace gloo {

class Context {
 public:
  void setTimeout(std::chrono::milliseconds timeout);
};

}  // namespace gloo
