#include "shardtorch/sharded_tensor/shared_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <fstream>

#include "libshard/core/error.h"

namespace shard {

namespace {

[[noreturn]] void throw_unshared(int reason) {
  throw Error(ErrorCode::kResource, "cannot share memory with other processes").because(std::strerror(reason));
}

}  // namespace

std::string host_identity() {
  std::array<char, 256> name{};
  gethostname(name.data(), name.size() - 1);
  std::string boot;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
  return std::string(name.data()) + " " + boot;
}

SharedMemory::SharedMemory(std::size_t bytes)
    : bytes_(bytes), descriptor_(::memfd_create("shardtorch", MFD_CLOEXEC | MFD_ALLOW_SEALING)) {
  const bool is_made = descriptor_ >= 0 && ::ftruncate(descriptor_, static_cast<off_t>(bytes)) == 0 &&
                       ::fcntl(descriptor_, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) == 0;
  if (!is_made) {
    const int reason = errno;
    close();
    throw_unshared(reason);
  }
  map(PROT_READ | PROT_WRITE);
}

SharedMemory::SharedMemory(const std::string& path, std::size_t bytes)
    : bytes_(bytes), descriptor_(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY)) {
  if (descriptor_ < 0) throw_unshared(errno);
  struct stat status {};
  if (::fstat(descriptor_, &status) != 0 || !S_ISREG(status.st_mode) || status.st_size != static_cast<off_t>(bytes)) {
    close();
    throw_unshared(EINVAL);
  }
  map(PROT_READ);
  close();
}

SharedMemory::~SharedMemory() {
  close();
  ::munmap(data_, bytes_);
}

void SharedMemory::reserve(std::size_t begin, std::size_t end) const {
  const int failed = ::posix_fallocate(descriptor_, static_cast<off_t>(begin), static_cast<off_t>(end - begin));
  if (failed != 0) throw_unshared(failed);
}

std::string SharedMemory::path() const {
  return "/proc/" + std::to_string(::getpid()) + "/fd/" + std::to_string(descriptor_);
}

void SharedMemory::map(int protection) {
  void* const mapped = ::mmap(nullptr, bytes_, protection, MAP_SHARED, descriptor_, 0);
  if (mapped == MAP_FAILED) {
    const int reason = errno;
    close();
    throw_unshared(reason);
  }
  data_ = static_cast<std::byte*>(mapped);
}

void SharedMemory::close() noexcept {
  if (descriptor_ >= 0) ::close(descriptor_);
  descriptor_ = -1;
}

}  // namespace shard
