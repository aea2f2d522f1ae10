#include <fcntl.h>
#include <fmt/format.h>
#include <linux/fs.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <thread>

#include "libshard/io/local_disk.h"
#include "libshard/io/paths.h"
#include "libshard/io/posix_file.h"

namespace shard::posix {

namespace {

constexpr int kMaxDepth = 256;  ///< Nested folders in a removal, each of which keeps a descriptor open.

int rename_at(int from, const std::string& name, int to, const std::string& new_name, unsigned int flags) {
  return static_cast<int>(::syscall(SYS_renameat2, from, name.c_str(), to, new_name.c_str(), flags));
}

/// Whether the kernel or the file system lacks the requested feature of renameat2.
bool is_missing_call(int error_number) {
  return error_number == ENOSYS || error_number == EINVAL || error_number == EOPNOTSUPP;
}

/// Reads the umask without changing it for other threads, unlike umask(2).
mode_t current_umask() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    unsigned int mask = 0;
    if (std::sscanf(line.c_str(), "Umask: %o", &mask) == 1) return mask;
  }
  const mode_t mask = ::umask(077);  // There is no /proc.
  ::umask(mask);
  return mask;
}

/// Whether a folder's owner is the owner of new files in it. On network disks, this is not always the process's user.
bool is_ours(int folder) {
  struct stat info {
  }, file_info{};
  if (::fstat(folder, &info) != 0) return false;
  if (info.st_uid == ::geteuid()) return true;
  const char* const name = ".owner";
  const Descriptor file = open_at(folder, name, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
  if (!file.valid()) return false;
  const bool is_same_owner = ::fstat(file.get(), &file_info) == 0 && file_info.st_uid == info.st_uid;
  return ::unlinkat(folder, name, 0) == 0 && is_same_owner;
}

bool remove_entry(int folder, const std::string& name, int depth);

/// Removes all entries, even from a folder that its owner has made read-only. \returns false on an error, which is in
/// errno.
bool remove_all_in(int folder, int depth) {
  if (depth > kMaxDepth) {
    errno = ENAMETOOLONG;
    return false;
  }
  const auto names = list(open_at(folder, ".", kFolderFlags));
  if (!names) return false;
  for (const std::string& name : *names) {
    if (remove_entry(folder, name, depth)) continue;
    if (errno != EACCES || ::fchmod(folder, S_IRWXU) != 0 || !remove_entry(folder, name, depth)) return false;
  }
  return true;
}

bool remove_entry(int folder, const std::string& name, int depth) {
  if (::unlinkat(folder, name.c_str(), 0) == 0 || errno == ENOENT) return true;
  if (errno != EISDIR && errno != EPERM) return false;  // Linux returns EISDIR; POSIX defines EPERM.
  const Descriptor below = open_at(folder, name, kFolderFlags | O_NOFOLLOW);
  if (!below.valid()) return errno == ENOENT;
  if (!remove_all_in(below.get(), depth + 1)) return false;
  return ::unlinkat(folder, name.c_str(), AT_REMOVEDIR) == 0 || errno == ENOENT;
}

/// Calls `remove`, which returns false with an error in errno, again for up to a second while other threads of a
/// failing job still have all descriptors, or create files. \returns whether it succeeded
template <class Remove>
bool is_removed_in_time(const Remove& remove) {
  constexpr int kAttempts = 100;
  for (int attempt = 1; !remove(); ++attempt) {
    const bool may_pass = errno == EMFILE || errno == ENFILE || errno == ENOTEMPTY;
    if (!may_pass || attempt == kAttempts) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return true;
}

class PosixFolder final : public LocalFolder {
 public:
  PosixFolder(Descriptor descriptor, const std::string& path) : LocalFolder(path), descriptor_(std::move(descriptor)) {}

  FileStatus status() const override {
    struct stat info {};
    if (::fstat(fd(), &info) != 0) fail_writing(path(), "cannot stat", errno);
    return status_from(info);
  }

  bool is_private() const override {
    struct stat info {};
    return ::fstat(fd(), &info) == 0 && info.st_uid == ::geteuid() && (info.st_mode & 0777) == 0700;
  }

  FileStatus status_of(const std::string& name) const override {
    struct stat info {};
    if (::fstatat(fd(), name.c_str(), &info, AT_SYMLINK_NOFOLLOW) == 0) return status_from(info);
    if (errno != ENOENT && errno != ENAMETOOLONG) fail_writing(path_of(name), "cannot stat", errno);
    return {};
  }

  bool is_mount_point(const std::string& name) const override {
    constexpr std::uint64_t kMountRoot = 0x2000;  // STATX_ATTR_MOUNT_ROOT of Linux 5.8.
    struct statx info {};
    const bool is_known = ::statx(fd(), name.c_str(), AT_SYMLINK_NOFOLLOW | AT_STATX_DONT_SYNC, 0, &info) == 0;
    return is_known && (info.stx_attributes & info.stx_attributes_mask & kMountRoot) != 0;
  }

  std::vector<std::string> list() const override {
    std::optional<std::vector<std::string>> names = posix::list(open_at(fd(), ".", kFolderFlags));
    if (!names) fail_writing(path(), "cannot list the folder", errno);
    return *std::move(names);
  }

  std::int64_t free_bytes() const override {
    struct statvfs info {};
    if (retry([&] { return ::fstatvfs(fd(), &info); }) != 0) fail_writing(path(), "cannot ask for free space", errno);
    if (info.f_blocks == 0) return INT64_MAX;  // FUSE reports this for a file system that does not know.
    return static_cast<std::int64_t>(info.f_bavail) * static_cast<std::int64_t>(info.f_frsize);
  }

  int requests_at_once() const override {
    struct statfs info {};
    return ::fstatfs(fd(), &info) == 0 ? requests_of(info) : 1;
  }

  std::unique_ptr<FileWriter> create(const std::string& name) override {
    constexpr int kFlags = O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC;
    Descriptor descriptor = open_at(fd(), name, kFlags, 0666);
    if (!descriptor.valid()) fail_making(name, "cannot create");
    return make_writer(std::move(descriptor), path_of(name));
  }

  std::unique_ptr<FileWriter> open_existing(const std::string& name) override {
    Descriptor descriptor = open_at(fd(), name, O_RDWR | O_NOFOLLOW | O_CLOEXEC);
    if (!descriptor.valid()) fail_writing(path_of(name), "cannot open for writing", errno);
    return make_writer(std::move(descriptor), path_of(name));
  }

  /// mkdir returns no descriptor. Before the folder is opened, a process with permission to rename here could put a
  /// different folder in its place.
  std::unique_ptr<LocalFolder> make_folder(const std::string& name) override {
    if (::mkdirat(fd(), name.c_str(), 0700) != 0) fail_making(name, "cannot create the folder");
    Descriptor made = open_at(fd(), name, kFolderFlags | O_NOFOLLOW);
    if (!made.valid() && errno == ENOENT) return nullptr;
    if (!made.valid()) fail_made(name, "cannot open the new folder");
    const auto entries = posix::list(open_at(made.get(), ".", kFolderFlags));
    if (!entries) fail_made(name, "cannot list the new folder");
    if (!entries->empty() || !is_ours(made.get())) {
      throw Error(ErrorCode::kResource, "cannot use the new folder: another one took its name").in_file(path_of(name));
    }
    return make_folder_handle(std::move(made), path_of(name));
  }

  std::unique_ptr<LocalFolder> open_folder(const std::string& name) override {
    Descriptor descriptor = open_at(fd(), name, kFolderFlags | O_NOFOLLOW);
    if (!descriptor.valid()) fail_writing(path_of(name), "cannot open the folder", errno);
    return make_folder_handle(std::move(descriptor), path_of(name));
  }

  void set_mode(std::optional<std::uint32_t> mode) override {
    struct stat info {};
    if (::fstat(fd(), &info) != 0) fail_writing(path(), "cannot stat", errno);
    const mode_t wanted = mode.value_or(0777 & ~current_umask()) | (info.st_mode & S_ISGID);
    // A folder that did not become private when it was made is on a disk without modes.
    const bool has_modes = (info.st_mode & 0777) == 0700;
    if (::fchmod(fd(), wanted) == 0 || (!has_modes && (errno == EPERM || is_missing_call(errno)))) return;
    fail_writing(path(), "cannot set the mode", errno);
  }

  void set_mode_of(const std::string& name, std::uint32_t mode, bool sync) override {
    const Descriptor file = open_at(fd(), name, O_RDWR | O_NOFOLLOW | O_CLOEXEC);
    if (!file.valid()) fail_writing(path_of(name), "cannot open", errno);
    if (::fchmod(file.get(), mode) != 0) fail_writing(path_of(name), "cannot set the mode", errno);
    if (sync && retry([&] { return ::fsync(file.get()); }) != 0) fail_writing(path_of(name), "cannot sync", errno);
  }

  /// Some network file systems cannot sync a folder and report this. Their servers keep the order of names themselves.
  void sync() override {
    if (retry([&] { return ::fsync(fd()); }) == 0 || is_missing_call(errno)) return;
    fail_writing(path(), "cannot sync the folder", errno);
  }

  void rename_new(const std::string& name, LocalFolder& other, const std::string& new_name) override {
    auto& to = static_cast<PosixFolder&>(other);
    if (rename_at(fd(), name, to.fd(), new_name, RENAME_NOREPLACE) == 0) return;
    if (is_missing_call(errno)) {  // Checks first instead. A name that appears in between would be overwritten.
      if (to.status_of(new_name).kind != FileKind::kAbsent) {
        errno = EEXIST;
      } else if (::renameat(fd(), name.c_str(), to.fd(), new_name.c_str()) == 0) {
        return;
      }
    }
    if (errno == ENOTEMPTY) errno = EEXIST;
    to.fail_making(new_name, "cannot rename to this name");
  }

  bool exchange(const std::string& name, LocalFolder& other, const std::string& other_name) override {
    auto& to = static_cast<PosixFolder&>(other);
    if (rename_at(fd(), name, to.fd(), other_name, RENAME_EXCHANGE) == 0) return true;
    if (is_missing_call(errno)) return false;
    fail_writing(to.path_of(other_name), "cannot replace", errno);
  }

  bool link(const std::string& name, const std::string& new_name) override {
    return ::linkat(fd(), name.c_str(), fd(), new_name.c_str(), 0) == 0;
  }

  void rename_over(const std::string& name, LocalFolder& other, const std::string& other_name) override {
    auto& to = static_cast<PosixFolder&>(other);
    if (::renameat(fd(), name.c_str(), to.fd(), other_name.c_str()) == 0) return;
    fail_writing(to.path_of(other_name), "cannot replace", errno);
  }

  void remove_all(const std::string& name) override {
    if (!remove_entry(fd(), name, 0)) fail_writing(path_of(name), "cannot remove", errno);
  }

  void remove_folder(const std::string& name, LocalFolder& folder) override {
    const auto& removed = static_cast<PosixFolder&>(folder);
    const auto remove = [&] {
      if (!remove_all_in(removed.fd(), 0)) return false;
      return !is_same(status_of(name), removed.status()) || ::unlinkat(fd(), name.c_str(), AT_REMOVEDIR) == 0;
    };
    if (!is_removed_in_time(remove)) fail_writing(removed.path(), "cannot remove", errno);
  }

  bool try_lock() override {
    if (retry([&] { return ::flock(fd(), LOCK_EX | LOCK_NB); }) != 0) return false;
    struct stat info {};
    return ::fstat(fd(), &info) == 0 && info.st_nlink > 0;  // Otherwise it was removed in the meantime.
  }

 private:
  int fd() const { return descriptor_.get(); }
  std::string path_of(const std::string& name) const { return join_path(path(), name); }
  /// Removes the new folder, unless another process has put something into it.
  [[noreturn]] void fail_made(const std::string& name, const char* doing) const {
    const int error_number = errno;
    ::unlinkat(fd(), name.c_str(), AT_REMOVEDIR);
    fail_writing(path_of(name), doing, error_number);
  }
  [[noreturn]] void fail_making(const std::string& name, const char* doing) const {
    if (errno != EEXIST) fail_writing(path_of(name), doing, errno);
    throw Error(ErrorCode::kExists, fmt::format("{}: it exists already", doing)).in_file(path_of(name));
  }

  const Descriptor descriptor_;
};

}  // namespace

std::unique_ptr<LocalFolder> make_folder_handle(Descriptor descriptor, const std::string& path) {
  return std::make_unique<PosixFolder>(std::move(descriptor), path);
}

}  // namespace shard::posix
