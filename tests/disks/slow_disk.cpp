// A file system over a folder that is as slow, and lacks as many calls, as the disks of clusters. Each call takes some
// milliseconds, is written to a log, and may be refused.
//
//     slow_disk MOUNT FOLDER LOG [SWITCH...]
//
// It stays in the foreground until it is unmounted. A line of the log is `CALL BYTES PATH`; BYTES is 0 for calls
// without data. Paths begin with '/', the mount's root. Switches:
//   delay=MICROSECONDS  the time of each call
//   timeout=SECONDS     how long the kernel keeps names and attributes (0: it asks again for each call)
//   direct              reads and writes pass the page cache: the log shows those of the program
//   lacks=CALL[,CALL]   calls that fail as unknown (ENOSYS): rename_flags, fallocate, truncate, link, chmod,
//                       fsync, fsyncdir, flock
//   invalid=CALL[,...]  the same with EINVAL
//   refuses=CALL[,...]  the same with EPERM
//   full=BYTES          the disk is full after BYTES bytes, and reports it only when a file is closed
//   short=BYTES         each read and write transfers at most BYTES
//   stale=N             the N-th read and all later ones fail with ESTALE
//   coarse=SECONDS      times are multiples of it
//   fixed               files have the mode 0644, folders 0755
#define FUSE_USE_VERSION 31
#include <dirent.h>
#include <fcntl.h>
#include <fuse.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <sstream>
#include <string>
#include <thread>

namespace {

struct Switches {
  std::string folder;
  std::chrono::microseconds delay{0};
  double timeout = 1;
  bool direct = false, fixed = false;
  std::map<std::string, int> errors;  // Calls that fail, with the error.
  std::int64_t full = -1, most = INT64_MAX, stale = -1, coarse = 1;
};

Switches switches;
std::FILE* call_log = nullptr;
std::atomic<std::int64_t> written{0}, reads{0};

std::string real(const char* path) { return switches.folder + path; }
int result(std::int64_t done) { return done < 0 ? -errno : static_cast<int>(done); }
int handle(const fuse_file_info* info) { return static_cast<int>(info->fh); }

// Waits and writes the call to the log. Returns the error with which it fails, or 0.
int begin(const char* call, const char* path, std::size_t bytes = 0) {
  std::this_thread::sleep_for(switches.delay);
  std::fprintf(call_log, "%s %zu %s\n", call, bytes,
               path == nullptr ? "" : path);  // One write: the log has line buffers.
  const auto found = switches.errors.find(call);
  return found == switches.errors.end() ? 0 : -found->second;
}

void make_coarse(timespec& time) {
  if (switches.coarse > 1) time = {time.tv_sec - time.tv_sec % switches.coarse, 0};
}

int coarse_status(int done, struct stat* status) {
  if (done != 0) return -errno;
  for (timespec* time : {&status->st_atim, &status->st_mtim, &status->st_ctim}) make_coarse(*time);
  if (switches.fixed) status->st_mode = (status->st_mode & S_IFMT) | (S_ISDIR(status->st_mode) ? 0755U : 0644U);
  return 0;
}

// The limits of a folder that is opened or created here.
int opened(int fd, fuse_file_info* info) {
  if (fd < 0) return -errno;
  info->fh = static_cast<std::uint64_t>(fd);
  info->direct_io = switches.direct ? 1 : 0;
  info->noflush = (info->flags & O_ACCMODE) == O_RDONLY ? 1 : 0;  // Closing a file that was read is free, as on NFS.
  return 0;
}

void* start(fuse_conn_info* connection, fuse_config* config) {
  config->use_ino = 1;
  config->entry_timeout = config->attr_timeout = switches.timeout;
  config->negative_timeout = 0;
  connection->max_background = 64;
  connection->congestion_threshold = 64;
  connection->max_write = 1 << 20;
  return nullptr;
}

int get_status(const char* path, struct stat* status, fuse_file_info* info) {
  if (const int error = begin("getattr", path)) return error;
  return coarse_status(info != nullptr ? ::fstat(handle(info), status) : ::lstat(real(path).c_str(), status), status);
}

int read_link(const char* path, char* target, std::size_t bytes) {
  if (const int error = begin("readlink", path)) return error;
  const ssize_t got = ::readlink(real(path).c_str(), target, bytes - 1);
  if (got < 0) return -errno;
  target[got] = '\0';
  return 0;
}

int make_folder(const char* path, mode_t mode) {
  const int error = begin("mkdir", path);
  return error != 0 ? error : result(::mkdir(real(path).c_str(), mode));
}

int remove_file(const char* path) {
  const int error = begin("unlink", path);
  return error != 0 ? error : result(::unlink(real(path).c_str()));
}

int remove_folder(const char* path) {
  const int error = begin("rmdir", path);
  return error != 0 ? error : result(::rmdir(real(path).c_str()));
}

int rename_entry(const char* from, const char* to, unsigned int flags) {
  const int error = begin(flags != 0 ? "rename_flags" : "rename", from);
  if (error != 0) return error;
  return result(::renameat2(AT_FDCWD, real(from).c_str(), AT_FDCWD, real(to).c_str(), flags));
}

int link_file(const char* from, const char* to) {
  const int error = begin("link", from);
  return error != 0 ? error : result(::link(real(from).c_str(), real(to).c_str()));
}

int link_name(const char* target, const char* path) {
  const int error = begin("symlink", path);
  return error != 0 ? error : result(::symlink(target, real(path).c_str()));
}

int change_mode(const char* path, mode_t mode, fuse_file_info*) {
  const int error = begin("chmod", path);
  return error != 0 ? error : result(::chmod(real(path).c_str(), mode));
}

int change_owner(const char* path, uid_t user, gid_t group, fuse_file_info*) {
  const int error = begin("chown", path);
  return error != 0 ? error : result(::lchown(real(path).c_str(), user, group));
}

int cut(const char* path, off_t bytes, fuse_file_info* info) {
  const int error = begin("truncate", path);
  if (error != 0) return error;
  return result(info != nullptr ? ::ftruncate(handle(info), bytes) : ::truncate(real(path).c_str(), bytes));
}

int set_times(const char* path, const timespec times[2], fuse_file_info*) {
  const int error = begin("utimens", path);
  return error != 0 ? error : result(::utimensat(AT_FDCWD, real(path).c_str(), times, AT_SYMLINK_NOFOLLOW));
}

int open_file(const char* path, fuse_file_info* info) {
  if (const int error = begin("open", path)) return error;
  return opened(::open(real(path).c_str(), info->flags & ~O_NOFOLLOW), info);
}

int create_file(const char* path, mode_t mode, fuse_file_info* info) {
  if (const int error = begin("create", path)) return error;
  return opened(::open(real(path).c_str(), info->flags, mode), info);
}

int read_bytes(const char* path, char* to, std::size_t bytes, off_t offset, fuse_file_info* info) {
  if (const int error = begin("read", path, bytes)) return error;
  if (switches.stale >= 0 && ++reads >= switches.stale) return -ESTALE;
  const auto some = std::min(static_cast<std::int64_t>(bytes), switches.most);
  return result(::pread(handle(info), to, static_cast<std::size_t>(some), offset));
}

int write_bytes(const char* path, const char* from, std::size_t bytes, off_t offset, fuse_file_info* info) {
  if (const int error = begin("write", path, bytes)) return error;
  const auto some = std::min(static_cast<std::int64_t>(bytes), switches.most);
  written += some;
  if (switches.full >= 0 && written > switches.full) return static_cast<int>(some);  // Kept nowhere.
  return result(::pwrite(handle(info), from, static_cast<std::size_t>(some), offset));
}

int flush(const char* path, fuse_file_info*) {
  if (const int error = begin("flush", path)) return error;
  return switches.full >= 0 && written > switches.full ? -ENOSPC : 0;
}

int release(const char*, fuse_file_info* info) { return result(::close(handle(info))); }

int sync_file(const char* path, int, fuse_file_info*) { return begin("fsync", path); }

int sync_folder(const char* path, int, fuse_file_info*) { return begin("fsyncdir", path); }

int reserve(const char* path, int mode, off_t offset, off_t bytes, fuse_file_info* info) {
  const int error = begin("fallocate", path);
  return error != 0 ? error : result(::fallocate(handle(info), mode, offset, bytes));
}

off_t find_data(const char* path, off_t offset, int whence, fuse_file_info* info) {
  const int error = begin("lseek", path);
  if (error != 0) return error;
  const off_t found = ::lseek(handle(info), offset, whence);
  return found < 0 ? -errno : found;
}

int open_folder(const char* path, fuse_file_info*) { return begin("opendir", path); }

int list_folder(const char* path, void* names, fuse_fill_dir_t fill, off_t, fuse_file_info*, fuse_readdir_flags) {
  if (const int error = begin("readdir", path)) return error;
  DIR* const folder = ::opendir(real(path).c_str());
  if (folder == nullptr) return -errno;
  while (const dirent* const entry = ::readdir(folder)) {
    struct stat status {};
    status.st_ino = entry->d_ino;
    status.st_mode = static_cast<mode_t>(entry->d_type) << 12;
    fill(names, entry->d_name, &status, 0, fuse_fill_dir_flags{});
  }
  ::closedir(folder);
  return 0;
}

int free_space(const char* path, struct statvfs* space) {
  const int error = begin("statfs", path);
  return error != 0 ? error : result(::statvfs(real(path).c_str(), space));
}

int lock_file(const char* path, fuse_file_info* info, int operation) {
  const int error = begin("flock", path);
  return error != 0 ? error : result(::flock(handle(info), operation));
}

void take_switch(const std::string& text) {
  const std::size_t equals = text.find('=');
  const std::string name = text.substr(0, equals), value = equals == text.npos ? "" : text.substr(equals + 1);
  const auto number = [&] { return std::strtoll(value.c_str(), nullptr, 10); };
  const std::map<std::string, int> kErrors{{"lacks", ENOSYS}, {"invalid", EINVAL}, {"refuses", EPERM}};
  if (const auto error = kErrors.find(name); error != kErrors.end()) {
    std::istringstream calls(value);
    for (std::string call; std::getline(calls, call, ',');) switches.errors[call] = error->second;
  } else if (name == "delay") {
    switches.delay = std::chrono::microseconds(number());
  } else if (name == "timeout") {
    switches.timeout = std::strtod(value.c_str(), nullptr);
  } else if (name == "direct") {
    switches.direct = true;
  } else if (name == "fixed") {
    switches.fixed = true;
  } else if (name == "full") {
    switches.full = number();
  } else if (name == "short") {
    switches.most = number();
  } else if (name == "stale") {
    switches.stale = number();
  } else if (name == "coarse") {
    switches.coarse = number();
  } else {
    std::fprintf(stderr, "slow_disk: unknown switch %s\n", text.c_str());
    std::exit(2);
  }
}

fuse_operations operations() {
  fuse_operations calls{};
  calls.init = start;
  calls.getattr = get_status;
  calls.readlink = read_link;
  calls.mkdir = make_folder;
  calls.unlink = remove_file;
  calls.rmdir = remove_folder;
  calls.rename = rename_entry;
  calls.link = link_file;
  calls.symlink = link_name;
  calls.chmod = change_mode;
  calls.chown = change_owner;
  calls.truncate = cut;
  calls.utimens = set_times;
  calls.open = open_file;
  calls.create = create_file;
  calls.read = read_bytes;
  calls.write = write_bytes;
  calls.flush = flush;
  calls.release = release;
  calls.fsync = sync_file;
  calls.fsyncdir = sync_folder;
  calls.fallocate = reserve;
  calls.lseek = find_data;
  calls.opendir = open_folder;
  calls.readdir = list_folder;
  calls.statfs = free_space;
  if (switches.errors.contains("flock")) calls.flock = lock_file;  // Without it, the kernel locks by itself.
  return calls;
}

}  // namespace

int main(int count, char** words) {
  if (count < 4) {
    std::fprintf(stderr, "usage: slow_disk MOUNT FOLDER LOG [SWITCH...]\n");
    return 2;
  }
  ::umask(0);
  switches.folder = words[2];
  call_log = std::fopen(words[3], "ae");
  if (call_log == nullptr) return 2;
  std::setvbuf(call_log, nullptr, _IOLBF, 1 << 16);
  for (int i = 4; i < count; ++i) take_switch(words[i]);
  const fuse_operations calls = operations();
  std::string options = "max_threads=64,fsname=slow_disk,allow_other,default_permissions";
  std::string program = words[0], foreground = "-f", dash = "-o";
  char* arguments[] = {program.data(), words[1], foreground.data(), dash.data(), options.data(), nullptr};
  return fuse_main(5, arguments, &calls, nullptr);
}
