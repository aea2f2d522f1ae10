#include <dirent.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <linux/fs.h>
#include <linux/openat2.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <fstream>

#include "libshard/io/file_writer.h"
#include "libshard/io/local_disk.h"
#include "libshard/io/paths.h"
#include "libshard/io/posix_file.h"

namespace shard {

namespace {

using posix::Descriptor;
using posix::fail_reading;
using posix::fail_writing;
using posix::retry;

/// O_NONBLOCK: opening a FIFO must not wait for its writer; regular files ignore it.
constexpr int kReadFlags = O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY;
constexpr int kFolderFlags = O_RDONLY | O_CLOEXEC | O_DIRECTORY;

Descriptor open_at(int folder, const std::string& path, int flags) {
  return Descriptor(retry([&] { return ::openat(folder, path.c_str(), flags); }));
}

int rename_at(const std::string& from, const std::string& to, unsigned int flags) {
  return static_cast<int>(::syscall(SYS_renameat2, AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), flags));
}

/// True when the kernel or the file system lacks what was asked of renameat2.
bool is_missing_call(int error_number) {
  return error_number == ENOSYS || error_number == EINVAL || error_number == EOPNOTSUPP;
}

[[noreturn]] void refuse_name(const std::string& folder, const std::string& relative, const char* why) {
  throw Error(ErrorCode::kCorruption, fmt::format("the file name '{}' leads out of the checkpoint's folder", relative))
      .in_file(folder)
      .because(why);
}

/// Parts of a path that must stay below its folder.
std::vector<std::string> safe_parts(const std::string& folder, const std::string& relative) {
  if (relative.empty() || relative.front() == '/') refuse_name(folder, relative, "it is not a relative path");
  if (relative.find('\0') != std::string::npos) refuse_name(folder, relative, "it holds a NUL character");
  std::vector<std::string> parts;
  for (std::size_t begin = 0; begin <= relative.size();) {
    const std::size_t end = std::min(relative.find('/', begin), relative.size());
    parts.push_back(relative.substr(begin, end - begin));
    if (parts.back().empty() || parts.back() == "." || parts.back() == "..") {
      refuse_name(folder, relative, "'..', '.' and empty parts are refused");
    }
    begin = end + 1;
  }
  return parts;
}

/// One step into a sub-folder. Where openat2 is missing, links as folders are refused altogether.
Descriptor open_sub_folder(const Descriptor& folder, const std::string& name, bool& has_openat2) {
  if (has_openat2) {
    open_how how{};
    how.flags = kFolderFlags;
    how.resolve = RESOLVE_BENEATH | RESOLVE_NO_MAGICLINKS;
    Descriptor opened(
        retry([&] { return static_cast<int>(::syscall(SYS_openat2, folder.get(), name.c_str(), &how, sizeof how)); }));
    if (opened.valid() || (errno != ENOSYS && errno != EPERM)) return opened;
    has_openat2 = false;
  }
  return open_at(folder.get(), name, kFolderFlags | O_NOFOLLOW);
}

/// The folder that holds the last of `parts`; no link on the way leads out of `folder`.
Descriptor open_folder_of(const std::string& folder, const std::string& relative,
                          const std::vector<std::string>& parts) {
  Descriptor base = open_at(AT_FDCWD, folder, kFolderFlags);
  if (!base.valid()) fail_reading(folder, "cannot open the folder", errno);
  if (parts.size() == 1) return base;
  const std::string parent = relative.substr(0, relative.rfind('/'));
  bool has_openat2 = true;
  Descriptor below = open_sub_folder(base, parent, has_openat2);
  if (!has_openat2) {
    for (std::size_t i = 0; i + 1 < parts.size(); ++i) {
      below = open_sub_folder(i == 0 ? base : below, parts[i], has_openat2);
      if (!below.valid()) break;
    }
  }
  if (below.valid()) return below;
  const bool is_link = errno == EXDEV || errno == ELOOP || (errno == ENOTDIR && !has_openat2);
  if (is_link) refuse_name(folder, relative, "a link on its way leads elsewhere");
  fail_reading(join_path(folder, relative), "cannot open", errno);
}

/// The umask, without changing it for other threads as umask(2) would.
mode_t current_umask() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    unsigned int mask = 0;
    if (std::sscanf(line.c_str(), "Umask: %o", &mask) == 1) return mask;
  }
  const mode_t mask = ::umask(077);  // No /proc.
  ::umask(mask);
  return mask;
}

FileKind kind_of(mode_t mode) {
  if (S_ISREG(mode)) return FileKind::kFile;
  return S_ISDIR(mode) ? FileKind::kFolder : FileKind::kOther;
}

class PosixDisk final : public LocalDisk {
 public:
  FileStatus status(const std::string& path) const override {
    struct stat info {};
    if (::stat(path.c_str(), &info) != 0) {
      if (errno == ENOENT || errno == ENOTDIR) return {};
      fail_reading(path, "cannot stat", errno);
    }
    return {kind_of(info.st_mode), info.st_size, info.st_dev, info.st_ino};
  }

  std::vector<std::string> list(const std::string& folder) const override {
    const std::unique_ptr<DIR, int (*)(DIR*)> stream(::opendir(folder.c_str()), ::closedir);
    if (stream == nullptr) fail_reading(folder, "cannot open the folder", errno);
    std::vector<std::string> names;
    for (;;) {
      errno = 0;
      const dirent* entry = ::readdir(stream.get());
      if (entry == nullptr) break;
      const std::string_view name(entry->d_name);
      if (name != "." && name != "..") names.emplace_back(name);
    }
    if (errno != 0) fail_reading(folder, "cannot list the folder", errno);
    std::sort(names.begin(), names.end());
    return names;
  }

  std::unique_ptr<RandomReader> open(const std::string& path) const override {
    Descriptor descriptor = open_at(AT_FDCWD, path, kReadFlags);
    if (!descriptor.valid()) fail_reading(path, "cannot open", errno);
    return posix::make_reader(std::move(descriptor), path);
  }

  /// The last part may be a link to anywhere: a Hugging Face cache keeps a snapshot's files as links to ../../blobs.
  std::unique_ptr<RandomReader> open_below(const std::string& folder, const std::string& relative) const override {
    const std::vector<std::string> parts = safe_parts(folder, relative);
    const Descriptor holder = open_folder_of(folder, relative, parts);
    const std::string path = join_path(folder, relative);
    Descriptor descriptor = open_at(holder.get(), parts.back(), kReadFlags);
    if (!descriptor.valid()) fail_reading(path, "cannot open", errno);
    return posix::make_reader(std::move(descriptor), path);
  }

  std::unique_ptr<FileWriter> create(const std::string& path) override {
    constexpr int kFlags = O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC;
    Descriptor descriptor(retry([&] { return ::open(path.c_str(), kFlags, 0666); }));
    if (!descriptor.valid()) fail_making(path, "cannot create");
    return posix::make_writer(std::move(descriptor), path);
  }

  std::unique_ptr<FileWriter> open_existing(const std::string& path) override {
    Descriptor descriptor(retry([&] { return ::open(path.c_str(), O_RDWR | O_NOFOLLOW | O_CLOEXEC); }));
    if (!descriptor.valid()) fail_writing(path, "cannot open what rank 0 made", errno);
    return posix::make_writer(std::move(descriptor), path);
  }

  void make_folder(const std::string& path) override {
    if (::mkdir(path.c_str(), 0700) != 0) fail_making(path, "cannot make the folder");
  }

  /// Some network file systems cannot sync a folder and say so; their servers order names by themselves.
  void sync_folder(const std::string& path) override {
    const Descriptor folder = open_at(AT_FDCWD, path, kFolderFlags);
    if (!folder.valid()) fail_writing(path, "cannot open the folder", errno);
    if (retry([&] { return ::fsync(folder.get()); }) == 0 || errno == EINVAL || errno == EOPNOTSUPP) return;
    fail_writing(path, "cannot sync the folder", errno);
  }

  void set_default_mode(const std::string& path) override {
    struct stat info {};
    if (::stat(path.c_str(), &info) != 0) fail_writing(path, "cannot stat", errno);
    const mode_t mode = (0777 & ~current_umask()) | (info.st_mode & S_ISGID);
    if (::chmod(path.c_str(), mode) != 0) fail_writing(path, "cannot set the mode", errno);
  }

  void rename_new(const std::string& from, const std::string& to) override {
    if (rename_at(from, to, RENAME_NOREPLACE) == 0) return;
    if (is_missing_call(errno)) {  // Then look first; a name that appears in between is the price.
      struct stat info {};
      if (::lstat(to.c_str(), &info) == 0) {
        errno = EEXIST;
      } else if (::rename(from.c_str(), to.c_str()) == 0) {
        return;
      }
    }
    if (errno == ENOTEMPTY) errno = EEXIST;
    fail_making(to, "cannot rename to this name");
  }

  bool exchange(const std::string& a, const std::string& b) override {
    if (rename_at(a, b, RENAME_EXCHANGE) == 0) return true;
    if (is_missing_call(errno)) return false;
    fail_writing(b, "cannot replace", errno);
  }

  void remove_all(const std::string& path) override {
    std::error_code error;
    std::filesystem::remove_all(path, error);  // Removes links, not what they point to.
    if (error) fail_writing(path, "cannot remove", error.value());
  }

  std::shared_ptr<void> try_lock(const std::string& folder) override {
    auto handle = std::make_shared<Descriptor>(open_at(AT_FDCWD, folder, kFolderFlags | O_NOFOLLOW));
    if (!handle->valid()) return nullptr;
    if (retry([&] { return ::flock(handle->get(), LOCK_EX | LOCK_NB); }) != 0) return nullptr;
    struct stat info {};
    if (::fstat(handle->get(), &info) != 0 || info.st_nlink == 0) return nullptr;  // Removed meanwhile.
    return handle;
  }

  std::int64_t free_bytes(const std::string& folder) const override {
    struct statvfs info {};
    if (retry([&] { return ::statvfs(folder.c_str(), &info); }) != 0) {
      fail_writing(folder, "cannot ask for free space", errno);
    }
    return static_cast<std::int64_t>(info.f_bavail) * static_cast<std::int64_t>(info.f_frsize);
  }

  /// Any failure is a "cannot": the ordinary copy that follows meets the same cause, if it is one, and names it.
  bool clone_range(const RandomReader& from, std::int64_t from_bytes, FileWriter& to, std::int64_t to_bytes,
                   std::int64_t bytes) override {
    if (from.descriptor() < 0 || to.descriptor() < 0 || bytes <= 0) return false;
    file_clone_range range{};
    range.src_fd = from.descriptor();
    range.src_offset = static_cast<std::uint64_t>(from_bytes);
    range.src_length = static_cast<std::uint64_t>(bytes);
    range.dest_offset = static_cast<std::uint64_t>(to_bytes);
    return retry([&] { return ::ioctl(to.descriptor(), FICLONERANGE, &range); }) == 0;
  }

 private:
  [[noreturn]] static void fail_making(const std::string& path, const char* doing) {
    if (errno != EEXIST) fail_writing(path, doing, errno);
    throw Error(ErrorCode::kExists, fmt::format("{}: it exists already", doing)).in_file(path);
  }
};

}  // namespace

LocalDisk& posix_disk() {
  static PosixDisk disk;  // Holds nothing.
  return disk;
}

}  // namespace shard
