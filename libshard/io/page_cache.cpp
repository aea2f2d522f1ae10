#include "libshard/io/page_cache.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <fstream>
#include <iterator>
#include <sstream>

namespace shard {

namespace {

std::string text_of_file(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

/// The number at the front of a text, or `machine_bytes` if it has none or a larger one.
std::int64_t limit_in(const std::string& text, std::int64_t machine_bytes) {
  std::int64_t limit = machine_bytes;
  std::from_chars(text.data(), text.data() + text.size(), limit);
  return std::min(limit, machine_bytes);
}

std::int64_t half_of_memory() {
  const std::int64_t pages = ::sysconf(_SC_PHYS_PAGES), page_bytes = ::sysconf(_SC_PAGESIZE);
  return usable_memory(std::max<std::int64_t>(0, pages) * page_bytes, text_of_file) / 2;
}

std::atomic<std::int64_t> kept_bytes{INT64_MAX};  ///< The bytes that may stay in the page cache.
std::atomic<std::int64_t> moved_bytes{0};

/// Whether pages are dropped from now on. A small job does not look up the memory, so it starts fast.
bool is_spared(std::int64_t bytes) {
  constexpr std::int64_t kSmallJob = 64 << 20;
  const std::int64_t moved = moved_bytes.fetch_add(bytes) + bytes;
  std::int64_t kept = kept_bytes;
  if (kept == kHalfOfMemory) {
    if (moved <= kSmallJob) return false;
    static const std::int64_t half = half_of_memory();
    kept = half;
  }
  return moved > kept;
}

}  // namespace

std::int64_t usable_memory(std::int64_t machine_bytes, const std::function<std::string(const std::string&)>& read) {
  std::int64_t usable = machine_bytes;
  std::istringstream groups(read("/proc/self/cgroup"));
  for (std::string line; std::getline(groups, line);) {  // "4:memory:/a/b" (version 1) or "0::/a/b" (version 2).
    const std::size_t controllers = line.find(':') + 1, path = line.find(':', controllers);
    if (controllers == 0 || path == std::string::npos) continue;
    const std::string of = line.substr(controllers, path - controllers);
    if (!of.empty() && of != "memory") continue;
    const std::string root = of.empty() ? "/sys/fs/cgroup" : "/sys/fs/cgroup/memory";
    const std::string name = of.empty() ? "/memory.max" : "/memory.limit_in_bytes";
    // A group cannot use more than the groups that contain it.
    for (std::string group = line.substr(path + 1);; group.resize(group.rfind('/'))) {
      if (group == "/") group.clear();
      usable = limit_in(read(root + group + name), usable);
      if (group.find('/') == std::string::npos) break;
    }
  }
  return usable;
}

void spare_page_cache(std::int64_t bytes) { kept_bytes = bytes; }

bool PassedPages::add(int descriptor, std::int64_t offset_bytes, std::int64_t bytes) {
  // Neither pages on their way to the disk nor parts of a run of pages that the kernel keeps as one can be dropped. So
  // each page is tried several times, some time after it was used.
  constexpr std::int64_t kStep = 16 << 20, kWindow = 4 * kStep;
  if (!is_spared(bytes)) return false;
  is_any_spared_ = true;
  const std::int64_t end = offset_bytes + bytes;
  std::int64_t seen = seen_;
  if (end - seen <= kStep || !seen_.compare_exchange_strong(seen, end)) return true;
  const std::int64_t begin = std::max<std::int64_t>(0, end - kWindow);
  ::posix_fadvise(descriptor, begin, end - kStep - begin, POSIX_FADV_DONTNEED);
  return true;
}

void PassedPages::finish(int descriptor) const {
  if (is_any_spared_) ::posix_fadvise(descriptor, 0, 0, POSIX_FADV_DONTNEED);
}

}  // namespace shard
