/// \file
/// POSIX files and the translation of errno into Error. Inside libshard/io only.
#pragma once

#include <fcntl.h>
#include <sys/stat.h>

#include <cerrno>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "libshard/core/error.h"
#include "libshard/io/file_writer.h"
#include "libshard/io/local_disk.h"

namespace shard::posix {

/// A file descriptor that closes itself. Ownership: of the descriptor.
class Descriptor {
 public:
  explicit Descriptor(int fd = -1) : fd_(fd) {}
  ~Descriptor();
  Descriptor(Descriptor&& other) noexcept : fd_(other.release()) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  int get() const { return fd_; }
  bool valid() const { return fd_ >= 0; }
  int release() {
    const int fd = fd_;
    fd_ = -1;
    return fd;
  }

 private:
  int fd_;
};

/// Repeats a system call while a signal interrupts it.
template <class Call>
auto retry(Call call) {
  auto result = call();
  while (result < 0 && errno == EINTR) result = call();
  return result;
}

/// openat that no signal interrupts.
Descriptor open_at(int folder, const std::string& path, int flags, mode_t mode = 0);
inline constexpr int kFolderFlags = O_RDONLY | O_CLOEXEC | O_DIRECTORY;

FileStatus status_from(const struct stat& info);
/// Names in a folder, sorted bytewise, without "." and ".."; nothing when errno says why not.
std::optional<std::vector<std::string>> list(Descriptor folder);

/// Something that is read is absent or unreadable: kNotFound; kResource where too many files are open. `doing` as in
/// "cannot open".
[[noreturn]] void fail_reading(const std::string& path, const char* doing, int error_number);
/// Something that is written cannot be: kResource.
[[noreturn]] void fail_writing(const std::string& path, const char* doing, int error_number);

/// Takes an open descriptor as a reader. \throws Error kNotFound  it is not a regular file.
std::unique_ptr<RandomReader> make_reader(Descriptor descriptor, const std::string& path);
std::unique_ptr<FileWriter> make_writer(Descriptor descriptor, const std::string& path);

/// Takes an open folder. posix_folder.cpp
std::unique_ptr<LocalFolder> make_folder_handle(Descriptor descriptor, const std::string& path);

}  // namespace shard::posix
