// Preloaded into the program under test: positioned reads and writes are done in part, and every few are interrupted,
// as the kernel may at any time. SHORT_IO_SEED chooses how. Only calls of more than one byte are cut.
#include <dlfcn.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstdlib>

namespace {

std::uint64_t next_number() {
  static const char* const seed = std::getenv("SHORT_IO_SEED");
  static std::atomic<std::uint64_t> state{seed == nullptr ? 1 : std::strtoull(seed, nullptr, 10)};
  std::uint64_t x = state.fetch_add(0x9e3779b97f4a7c15U) + 0x9e3779b97f4a7c15U;  // SplitMix64.
  x = (x ^ (x >> 30U)) * 0xbf58476d1ce4e5b9U;
  x = (x ^ (x >> 27U)) * 0x94d049bb133111ebU;
  return x ^ (x >> 31U);
}

/// \returns how many bytes of `count` to do; 0: interrupted.
std::size_t cut(std::size_t count) {
  const std::uint64_t chance = next_number();
  if (chance % 5 == 0) return 0;
  return count > 1 ? 1 + (chance >> 8U) % count : count;
}

template <class Call, class Memory>
ssize_t in_part(const char* name, int fd, Memory* memory, std::size_t count, off64_t offset) {
  static const auto call = reinterpret_cast<Call>(::dlsym(RTLD_NEXT, name));
  const std::size_t some = cut(count);
  if (some > 0 || count == 0) return call(fd, memory, some, offset);
  errno = EINTR;
  return -1;
}

}  // namespace

extern "C" {

ssize_t pread64(int fd, void* memory, size_t count, off64_t offset) {
  return in_part<ssize_t (*)(int, void*, size_t, off64_t)>("pread64", fd, memory, count, offset);
}
ssize_t pwrite64(int fd, const void* memory, size_t count, off64_t offset) {
  return in_part<ssize_t (*)(int, const void*, size_t, off64_t)>("pwrite64", fd, memory, count, offset);
}
ssize_t pread(int fd, void* memory, size_t count, off_t offset) { return pread64(fd, memory, count, offset); }
ssize_t pwrite(int fd, const void* memory, size_t count, off_t offset) { return pwrite64(fd, memory, count, offset); }
}
