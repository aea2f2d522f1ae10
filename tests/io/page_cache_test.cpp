#include "libshard/io/page_cache.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <map>
#include <vector>

#include "libshard/io/local_disk.h"
#include "tests/support/temp_folder.h"

namespace shard {
namespace {

constexpr std::int64_t kMachine = std::int64_t{16} << 30;

std::int64_t usable(const std::map<std::string, std::string>& files) {
  return usable_memory(kMachine, [&](const std::string& path) {
    const auto found = files.find(path);
    return found == files.end() ? std::string() : found->second;
  });
}

TEST(UsableMemory, IsTheMachinesWithoutLimits) {
  EXPECT_EQ(usable({}), kMachine);
  EXPECT_EQ(usable({{"/proc/self/cgroup", "0::/\n"}, {"/sys/fs/cgroup/memory.max", "max\n"}}), kMachine);
}

TEST(UsableMemory, IsTheLeastLimitOfTheGroupsAroundTheProcess) {
  EXPECT_EQ(usable({{"/proc/self/cgroup", "0::/a/b\n"},
                    {"/sys/fs/cgroup/a/b/memory.max", "4000000\n"},
                    {"/sys/fs/cgroup/a/memory.max", "3000000\n"},
                    {"/sys/fs/cgroup/memory.max", "max\n"}}),
            3'000'000);
}

TEST(UsableMemory, IsReadFromGroupsOfVersion1) {
  EXPECT_EQ(usable({{"/proc/self/cgroup", "3:cpu:/x\n2:memory:/job\n0::/\n"},
                    {"/sys/fs/cgroup/memory/job/memory.limit_in_bytes", "2000000\n"},
                    {"/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n"}}),
            2'000'000);
}

/// The bytes of a file that are in the page cache.
std::int64_t cached_bytes(const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  const std::int64_t bytes = ::lseek(fd, 0, SEEK_END), page = ::sysconf(_SC_PAGESIZE);
  void* const mapped = ::mmap(nullptr, static_cast<std::size_t>(bytes), PROT_READ, MAP_SHARED, fd, 0);
  std::vector<unsigned char> pages(static_cast<std::size_t>((bytes + page - 1) / page));
  EXPECT_EQ(::mincore(mapped, static_cast<std::size_t>(bytes), pages.data()), 0);
  ::munmap(mapped, static_cast<std::size_t>(bytes));
  ::close(fd);
  return page * std::ranges::count_if(pages, [](unsigned char each) { return (each & 1) != 0; });
}

class PageCache : public ::testing::Test {
 protected:
  ~PageCache() override { spare_page_cache(INT64_MAX); }

  void write(std::int64_t bytes) {
    const auto writer = disk.create(path);
    for (std::int64_t at = 0; at < bytes; at += std::ssize(block)) writer->write_at(at, block);
    writer->sync();
    writer->close();
  }
  /// \returns the bytes in the page cache before the file is closed
  std::int64_t read(std::int64_t bytes) {
    std::vector<std::byte> into(block.size());
    const auto reader = disk.open(path);
    for (std::int64_t at = 0; at < bytes; at += std::ssize(into)) reader->read_at(at, into);
    EXPECT_EQ(into, block);
    return cached_bytes(path);
  }

  test::TempFolder temp;
  const std::string path = temp / "f";
  LocalDisk& disk = posix_disk();
  const std::vector<std::byte> block = std::vector<std::byte>(std::size_t{1} << 20, std::byte{7});
};

TEST_F(PageCache, KeepsWhatASmallJobReadsAndWrites) {
  constexpr std::int64_t kBytes = 4 << 20;
  write(kBytes);
  read(kBytes);
  EXPECT_EQ(cached_bytes(path), kBytes);
}

TEST_F(PageCache, LosesWhatALargeJobWritesAndReads) {
  constexpr std::int64_t kBytes = 64 << 20;
  spare_page_cache(0);
  write(kBytes);
  if (cached_bytes(path) == kBytes) GTEST_SKIP() << "a disk that keeps its files in memory";
  EXPECT_LT(cached_bytes(path), kBytes / 8);
  EXPECT_LT(read(kBytes), 3 * kBytes / 4);
  EXPECT_LT(cached_bytes(path), kBytes / 8);
}

}  // namespace
}  // namespace shard
