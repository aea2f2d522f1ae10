/// \file
/// POSIX files and the translation of errno into Error. Inside libshard/io only.
#pragma once

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/vfs.h>

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

/// Owns a file descriptor and closes it.
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

/// Calls openat again if a signal interrupts it.
Descriptor open_at(int folder, const std::string& path, int flags, mode_t mode = 0);
inline constexpr int kFolderFlags = O_RDONLY | O_CLOEXEC | O_DIRECTORY;

FileStatus status_from(const struct stat& info);
/// RandomReader::requests_at_once for files of this file system: several, if it is on a network or in a process (FUSE).
int requests_of(const struct statfs& info);
/// The names in a folder, sorted bytewise, without "." and "..". Nothing on an error, which is in errno.
std::optional<std::vector<std::string>> list(Descriptor folder);

/// Throws the error for a source that is absent or unreadable: kNotFound, or kResource if too many files are open.
/// `doing` is for example "cannot open".
[[noreturn]] void fail_reading(const std::string& path, const char* doing, int error_number);
/// Throws the error for an output that cannot be written: kResource.
[[noreturn]] void fail_writing(const std::string& path, const char* doing, int error_number);

/// Converts an open descriptor to a reader. \throws Error kNotFound  it is not a regular file.
std::unique_ptr<RandomReader> make_reader(Descriptor descriptor, const std::string& path);
std::unique_ptr<FileWriter> make_writer(Descriptor descriptor, const std::string& path);

/// Converts an open folder to a handle. posix_folder.cpp
std::unique_ptr<LocalFolder> make_folder_handle(Descriptor descriptor, const std::string& path);

}  // namespace shard::posix
