#include "libshard/io/posix_file.h"

#include <dirent.h>
#include <fmt/format.h>
#include <linux/magic.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <map>
#include <mutex>
#include <new>
#include <system_error>

#include "libshard/core/parallel.h"
#include "libshard/io/page_cache.h"

namespace shard::posix {

namespace {

std::string text_of(int error_number) { return std::generic_category().message(error_number); }

/// Facts about a device. Threads: safe.
struct Device {
  enum class Caches { kUnknown, kYes, kNo };

  int requests = 1;  ///< RandomReader::requests_at_once.
  /// Whether reads fill the kernel's page cache. If not (FOPEN_DIRECT_IO), announced bytes would be read twice.
  std::atomic<Caches> caches = Caches::kUnknown;
};

/// The facts are determined once per device, and exist until the process ends.
Device& device_of(int fd, std::uint64_t number) {
  static std::mutex mutex;
  static std::map<std::uint64_t, Device> known;
  const std::scoped_lock lock(mutex);
  const auto [place, is_new] = known.try_emplace(number);
  struct statfs info {};
  if (is_new && ::fstatfs(fd, &info) == 0) place->second.requests = requests_of(info);
  return place->second;
}

/// Whether the kernel keeps some of these bytes, which were read before. True if it does not report this (before Linux
/// 6.5).
bool is_kept(int fd, std::int64_t offset_bytes, std::int64_t bytes) {
  constexpr long kCacheStat = 451;
  const std::array<std::uint64_t, 2> range{static_cast<std::uint64_t>(offset_bytes), static_cast<std::uint64_t>(bytes)};
  std::array<std::uint64_t, 5> pages{};  // Cached, dirty, written back, evicted, evicted recently.
  return ::syscall(kCacheStat, fd, range.data(), pages.data(), 0U) != 0 || pages[0] > 0;
}

constexpr std::int64_t kStatBlock = 512;  ///< The unit of st_blocks.

class PosixReader final : public RandomReader {
  static constexpr std::int64_t kReadAhead = 128 << 10;

 public:
  PosixReader(Descriptor descriptor, const std::string& path, const struct stat& info)
      : descriptor_(std::move(descriptor)),
        status_(status_from(info)),
        is_whole_(std::int64_t{info.st_blocks} * kStatBlock >= info.st_size),
        device_(device_of(descriptor_.get(), status_.device)) {
    name_ = path;
  }
  ~PosixReader() override { passed_pages_.finish(descriptor_.get()); }
  PosixReader(const PosixReader&) = delete;
  PosixReader& operator=(const PosixReader&) = delete;

  void read_at(std::int64_t offset_bytes, std::span<std::byte> out) const override {
    const bool is_long = device_.requests > 1 && std::ssize(out) > kReadAhead;
    if (is_long && device_.caches == Device::Caches::kYes) announce(offset_bytes, std::ssize(out));
    std::size_t done = 0;
    while (done < out.size()) {
      const std::int64_t from = offset_bytes + static_cast<std::int64_t>(done);
      const ssize_t got = retry([&] { return ::pread(descriptor_.get(), out.data() + done, out.size() - done, from); });
      if (got < 0) fail_reading(name_, "cannot read", errno);
      if (got == 0) throw_truncated(offset_bytes, out.size(), done);
      done += static_cast<std::size_t>(got);
    }
    if (std::ssize(out) >= kReadAhead) passed_pages_.add(descriptor_.get(), offset_bytes, std::ssize(out));
    if (!is_long || device_.caches != Device::Caches::kUnknown) return;
    const bool is_cached = is_kept(descriptor_.get(), offset_bytes, std::ssize(out));
    device_.caches = is_cached ? Device::Caches::kYes : Device::Caches::kNo;
  }

  void read_many(std::span<const RangedRead> ranges) const override {
    for_each_index(ranges.size(), device_.requests,
                   [&](std::size_t i) { read_at(ranges[i].offset_bytes, ranges[i].out); });
  }

  std::int64_t size() const override { return status_.bytes; }
  FileIdentity identity() const override { return status_.identity(); }
  std::int64_t modified_ns() const override { return status_.modified_ns; }
  std::int64_t allocated_bytes(std::int64_t offset_bytes, std::int64_t count) const override {
    const std::int64_t end = offset_bytes + count;
    if (is_whole_) return std::max<std::int64_t>(0, std::min(end, status_.bytes) - offset_bytes);
    std::int64_t held = 0;
    for (std::int64_t at = offset_bytes; at < end;) {
      const std::int64_t data = ::lseek(descriptor_.get(), at, SEEK_DATA);
      // ENXIO: a hole up to the end of the file. Other errors mean that holes are unknown.
      if (data < 0) return errno == ENXIO ? held : count;
      if (data >= end) break;
      const std::int64_t hole = ::lseek(descriptor_.get(), data, SEEK_HOLE);
      if (hole < 0) return count;
      held += std::min(hole, end) - data;
      at = hole;
    }
    return held;
  }
  int requests_at_once() const override { return device_.requests; }
  int descriptor() const override { return descriptor_.get(); }

 private:
  /// Network file systems read ahead of one long read in pieces of kReadAhead, one or two at one time. If they are
  /// announced, all pieces are requested at one time.
  void announce(std::int64_t offset_bytes, std::int64_t bytes) const {
    for (std::int64_t done = kReadAhead; done < bytes; done += kReadAhead) {
      ::posix_fadvise(descriptor_.get(), offset_bytes + done, std::min(kReadAhead, bytes - done), POSIX_FADV_WILLNEED);
    }
  }

  [[noreturn]] void throw_truncated(std::int64_t offset_bytes, std::size_t wanted, std::size_t got) const {
    const std::int64_t need = offset_bytes + static_cast<std::int64_t>(wanted);
    const std::int64_t have = offset_bytes + static_cast<std::int64_t>(got);
    throw Error(file_too_short(name_, have, need).because("the file is truncated").hint("fetch it again"));
  }

  Descriptor descriptor_;
  const FileStatus status_;  ///< The status when the file was opened.
  const bool is_whole_;      ///< It has no holes. Network disks need a round trip to find one.
  Device& device_;
  mutable PassedPages passed_pages_;
};

class PosixWriter final : public FileWriter {
 public:
  PosixWriter(Descriptor descriptor, const std::string& path) : descriptor_(std::move(descriptor)), path_(path) {}

  void write_at(std::int64_t offset_bytes, std::span<const std::byte> data) override {
    std::size_t done = 0;
    while (done < data.size()) {
      const std::int64_t to = offset_bytes + static_cast<std::int64_t>(done);
      const ssize_t put =
          retry([&] { return ::pwrite(descriptor_.get(), data.data() + done, data.size() - done, to); });
      if (put < 0) fail_writing(path_, "cannot write", errno);
      done += static_cast<std::size_t>(put);
    }
    if (data.size() < kWorthBeginning) return;
    const bool is_spared = passed_pages_.add(descriptor_.get(), offset_bytes, std::ssize(data));
    if (is_sync_expected_ || is_spared) begin_sync(offset_bytes, std::ssize(data));
  }

  void read_back(std::int64_t offset_bytes, std::span<std::byte> out) override {
    for (std::size_t done = 0; done < out.size();) {
      const std::int64_t from = offset_bytes + static_cast<std::int64_t>(done);
      const ssize_t got = retry([&] { return ::pread(descriptor_.get(), out.data() + done, out.size() - done, from); });
      if (got < 0) fail_writing(path_, "cannot read back", errno);
      if (got == 0) throw cannot_read_back().in_file(path_);
      done += static_cast<std::size_t>(got);
    }
  }

  /// Uses the system call instead of posix_fallocate. If the file system cannot reserve space, glibc would write every
  /// block. In a file system in memory, one thread would take as long to reserve the pages as all threads take to write
  /// them, so only the free space is compared.
  void allocate(std::int64_t bytes) override {
    if (bytes == 0) return;
    if (const std::int64_t free_bytes = free_in_memory(); free_bytes >= 0) {
      if (free_bytes < bytes) fail_writing(path_, "cannot reserve space", ENOSPC);
    } else {
      if (retry([&] { return ::fallocate(descriptor_.get(), 0, 0, bytes); }) == 0) return;
      if (errno != EOPNOTSUPP && errno != ENOSYS && errno != EINVAL) fail_writing(path_, "cannot reserve space", errno);
    }
    if (retry([&] { return ::ftruncate(descriptor_.get(), bytes); }) != 0) {
      fail_writing(path_, "cannot set the size", errno);
    }
  }

  void expect_sync() override { is_sync_expected_ = true; }

  void sync() override {
    if (retry([&] { return ::fsync(descriptor_.get()); }) != 0) fail_writing(path_, "cannot sync", errno);
  }

  /// Never repeated: Linux has released the descriptor even when close reports EINTR.
  void close() override {
    passed_pages_.finish(descriptor_.get());
    if (::close(descriptor_.release()) != 0 && errno != EINTR) fail_writing(path_, "cannot close", errno);
  }

  int descriptor() const override { return descriptor_.get(); }

 private:
  static constexpr std::size_t kWorthBeginning = 1 << 16;

  /// The bytes that the file may have in a file system in memory (tmpfs), or -1 in any other.
  std::int64_t free_in_memory() const {
    struct statfs info {};
    if (retry([&] { return ::fstatfs(descriptor_.get(), &info); }) != 0 || info.f_type != TMPFS_MAGIC) return -1;
    if (info.f_blocks == 0) return INT64_MAX;  // It has no limit.
    struct stat own {};
    // An interrupted run may have written parts of the file.
    const std::int64_t written = ::fstat(descriptor_.get(), &own) == 0 ? own.st_blocks * kStatBlock : 0;
    return static_cast<std::int64_t>(info.f_bavail) * static_cast<std::int64_t>(info.f_bsize) + written;
  }

  /// This is only a hint. Without the flags that wait, it does not consume a disk error that fsync must report.
  void begin_sync(std::int64_t offset_bytes, std::int64_t bytes) const {
    ::sync_file_range(descriptor_.get(), offset_bytes, bytes, SYNC_FILE_RANGE_WRITE);
  }

  Descriptor descriptor_;
  std::string path_;
  bool is_sync_expected_ = false;
  PassedPages passed_pages_;
};

}  // namespace

Descriptor::~Descriptor() {
  if (fd_ >= 0) ::close(fd_);
}

Descriptor open_at(int folder, const std::string& path, int flags, mode_t mode) {
  return Descriptor(retry([&] { return ::openat(folder, path.c_str(), flags, mode); }));
}

int requests_of(const struct statfs& info) {
  // NFS, FUSE, SMB 1 to 3, Ceph, Lustre, GPFS, BeeGFS, 9P, AFS.
  constexpr std::array<std::uint32_t, 11> kNetwork{0x6969,     0x65735546, 0x517B,     0xFF534D42,
                                                   0xFE534D42, 0x00C36400, 0x0BD00BD0, 0x47504653,
                                                   0x19830326, 0x01021997, 0x5346414F};
  constexpr int kAtOnce = 16;  // Also the default of requests to object stores.
  return std::ranges::find(kNetwork, static_cast<std::uint32_t>(info.f_type)) == kNetwork.end() ? 1 : kAtOnce;
}

FileStatus status_from(const struct stat& info) {
  const FileKind kind = S_ISREG(info.st_mode)   ? FileKind::kFile
                        : S_ISDIR(info.st_mode) ? FileKind::kFolder
                                                : FileKind::kOther;
  const std::int64_t modified_ns = info.st_mtim.tv_sec * std::int64_t{1'000'000'000} + info.st_mtim.tv_nsec;
  return {kind, info.st_size, info.st_dev, info.st_ino, info.st_mode & 0777, std::max<std::int64_t>(0, modified_ns)};
}

std::optional<std::vector<std::string>> list(Descriptor folder) {
  if (!folder.valid()) return std::nullopt;
  const std::unique_ptr<DIR, int (*)(DIR*)> stream(::fdopendir(folder.get()), ::closedir);
  if (stream == nullptr) return std::nullopt;
  folder.release();
  std::vector<std::string> names;
  for (;;) {
    errno = 0;
    const dirent* entry = ::readdir(stream.get());
    if (entry == nullptr) break;
    const std::string_view name(entry->d_name);
    if (name != "." && name != "..") names.emplace_back(name);
  }
  if (errno != 0) return std::nullopt;
  std::sort(names.begin(), names.end());
  return names;
}

namespace {

constexpr const char* kRaiseLimit = "raise the limit of open files (ulimit -n)";

bool is_open_files_limit(int error_number) { return error_number == EMFILE || error_number == ENFILE; }

}  // namespace

void fail_reading(const std::string& path, const char* doing, int error_number) {
  if (error_number == ENOMEM) throw std::bad_alloc();
  const bool is_limit = is_open_files_limit(error_number);  // Not a property of this file.
  Error error(is_limit ? ErrorCode::kResource : ErrorCode::kNotFound,
              fmt::format("{}: {}", doing, text_of(error_number)));
  error.in_file(path);
  if (is_limit) error.hint(kRaiseLimit);
  if (error_number == ENOENT || error_number == ENOTDIR || error_number == ELOOP)
    error.of_kind(FindingKind::kMissingFile);
  if (error_number == EACCES || error_number == EPERM) error.hint("check the permissions of the file and its folders");
  if (error_number == EIO) error.because("the disk or network file system could not read the bytes");
  throw error;
}

void fail_writing(const std::string& path, const char* doing, int error_number) {
  if (error_number == ENOMEM) throw std::bad_alloc();
  const char* what = nullptr;
  if (error_number == ENOSPC) what = "disk full";
  if (error_number == EDQUOT) what = "disk quota exceeded";
  if (error_number == EFBIG) what = "file too large for the file system or for this process (ulimit -f)";
  Error error(ErrorCode::kResource, fmt::format("{}: {}", doing, what != nullptr ? what : text_of(error_number)));
  error.in_file(path);
  if (is_open_files_limit(error_number)) error.hint(kRaiseLimit);
  if (error_number == ENOSPC || error_number == EDQUOT) error.hint("free some space, or write to another disk");
  if (error_number == EACCES || error_number == EPERM || error_number == EROFS) {
    error.hint("choose a folder that you may write to");
  }
  if (error_number == EXDEV) {  // overlayfs cannot rename a folder of its lower layer.
    error.hint(
        "remove the old folder first if it comes from the image of this container, or choose another destination");
  }
  throw error;
}

std::unique_ptr<RandomReader> make_reader(Descriptor descriptor, const std::string& path) {
  struct stat info {};
  if (::fstat(descriptor.get(), &info) != 0) fail_reading(path, "cannot stat", errno);
  if (!S_ISREG(info.st_mode)) {
    throw Error(ErrorCode::kNotFound,
                S_ISDIR(info.st_mode) ? "cannot read a folder as a file" : "cannot read: this is not a regular file")
        .in_file(path)
        .of_kind(FindingKind::kMissingFile)
        .because("only regular files can be read at arbitrary offsets");
  }
  return std::make_unique<PosixReader>(std::move(descriptor), path, info);
}

std::unique_ptr<FileWriter> make_writer(Descriptor descriptor, const std::string& path) {
  return std::make_unique<PosixWriter>(std::move(descriptor), path);
}

}  // namespace shard::posix
