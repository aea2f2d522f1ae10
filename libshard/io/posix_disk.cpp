#include <fcntl.h>
#include <fmt/format.h>
#include <linux/fs.h>
#include <linux/openat2.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <filesystem>
#include <optional>

#include "libshard/io/file_writer.h"
#include "libshard/io/local_disk.h"
#include "libshard/io/paths.h"
#include "libshard/io/posix_file.h"
#include "libshard/io/url_path.h"

namespace shard {

namespace {

using posix::Descriptor;
using posix::fail_reading;
using posix::kFolderFlags;
using posix::open_at;
using posix::retry;

/// O_NONBLOCK: opening a FIFO must not wait for its writer; regular files ignore it.
constexpr int kReadFlags = O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY;

/// Opens a folder only to find names in it. O_PATH: the file system is not asked to open it.
constexpr int kPlaceFlags = O_PATH | O_CLOEXEC | O_DIRECTORY;

/// Opens one sub-folder. If openat2 is missing, folders that are links are refused.
Descriptor open_sub_folder(const Descriptor& folder, const std::string& name, bool& has_openat2) {
  if (has_openat2) {
    open_how how{};
    how.flags = kPlaceFlags;
    how.resolve = RESOLVE_BENEATH | RESOLVE_NO_MAGICLINKS;
    Descriptor opened(
        retry([&] { return static_cast<int>(::syscall(SYS_openat2, folder.get(), name.c_str(), &how, sizeof how)); }));
    if (opened.valid() || (errno != ENOSYS && errno != EPERM)) return opened;
    has_openat2 = false;
  }
  return open_at(folder.get(), name, kPlaceFlags | O_NOFOLLOW);
}

/// Opens the folder that contains the last of `parts`, of which there are several. No link on the way leads out of
/// `folder`, which is relative to `place`.
Descriptor open_folder_of(int place, const std::string& folder, const std::string& relative,
                          const std::vector<std::string>& parts) {
  Descriptor base = open_at(place, folder, kPlaceFlags);
  if (!base.valid()) fail_reading(folder, "cannot open the folder", errno);
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
  if (is_link) throw name_outside(folder, relative, "a symlink in its path points elsewhere");
  fail_reading(join_path(folder, relative), "cannot open", errno);
}

class PosixDisk final : public LocalDisk {
 public:
  /// `place`: the folder of relative paths; that of the process, also if it changes, if it is not valid.
  explicit PosixDisk(Descriptor place = Descriptor()) : place_(std::move(place)) {}

  FileStatus status(const std::string& path) const override {
    struct stat info {};
    if (::fstatat(place(), path.c_str(), &info, 0) != 0) {
      if (errno == ENOENT || errno == ENOTDIR || errno == ELOOP) return {};
      // The name itself is too long, not the whole path.
      if (errno == ENAMETOOLONG && base_name(path).size() > NAME_MAX) return {};
      fail_reading(path, "cannot stat", errno);
    }
    return posix::status_from(info);
  }

  std::vector<std::string> list(const std::string& folder) const override {
    Descriptor descriptor = open_at(place(), folder, kFolderFlags);
    if (!descriptor.valid()) fail_reading(folder, "cannot open the folder", errno);
    std::optional<std::vector<std::string>> names = posix::list(std::move(descriptor));
    if (!names) fail_reading(folder, "cannot list the folder", errno);
    return *std::move(names);
  }

  std::unique_ptr<RandomReader> open(const std::string& path) const override {
    Descriptor descriptor = open_at(place(), path, kReadFlags);
    if (!descriptor.valid()) fail_reading(path, "cannot open", errno);
    return posix::make_reader(std::move(descriptor), path);
  }

  /// The last part may be a link to anywhere, because a Hugging Face cache keeps a snapshot's files as links to
  /// ../../blobs.
  std::unique_ptr<RandomReader> open_below(const std::string& folder, const std::string& relative) const override {
    const std::vector<std::string> parts = parts_below(folder, relative);
    const std::string path = join_path(folder, relative);
    if (parts.size() == 1) return open(path);
    const Descriptor holder = open_folder_of(place(), folder, relative, parts);
    Descriptor descriptor = open_at(holder.get(), parts.back(), kReadFlags);
    if (!descriptor.valid()) fail_reading(path, "cannot open", errno);
    return posix::make_reader(std::move(descriptor), path);
  }

  std::unique_ptr<LocalFolder> open_folder(const std::string& path) override {
    Descriptor descriptor = open_at(place(), path, kFolderFlags);
    if (!descriptor.valid() && (errno == ENOENT || errno == ENOTDIR)) return nullptr;
    if (!descriptor.valid()) posix::fail_writing(path, "cannot open the folder", errno);
    return posix::make_folder_handle(std::move(descriptor), path);
  }

  std::string resolved(const std::string& path) const override {
    std::error_code error;
    const std::filesystem::path whole = std::filesystem::canonical(path, error);
    return error ? path : whole.string();
  }

  int requests_at_once(const std::string& path) const override {
    struct statfs info {};
    return ::statfs(path.c_str(), &info) == 0 ? posix::requests_of(info) : 1;
  }

  /// Every failure returns false. The ordinary copy that follows fails for the same cause, if it is serious, and
  /// reports it.
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
  int place() const { return place_.valid() ? place_.get() : AT_FDCWD; }

  const Descriptor place_;
};

}  // namespace

LocalDisk& posix_disk() {
  static PosixDisk disk;  // It has no state.
  return disk;
}

std::unique_ptr<SourceStore> posix_disk_from_here() {
  return std::make_unique<PosixDisk>(open_at(AT_FDCWD, ".", kPlaceFlags));
}

}  // namespace shard
