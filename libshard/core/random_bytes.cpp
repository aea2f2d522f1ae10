#include "libshard/core/random_bytes.h"

#include <sys/random.h>

#include <cassert>
#include <cerrno>
#include <cstring>

#include "libshard/core/error.h"

namespace shard {

void draw_random(std::span<std::byte> bytes) {
  assert(bytes.size() <= 256);  // The kernel returns up to this size at once.
  if (getrandom(bytes.data(), bytes.size(), 0) == std::ssize(bytes)) return;
  throw Error(ErrorCode::kResource, "cannot draw random bytes from the kernel").because(std::strerror(errno));
}

}  // namespace shard
