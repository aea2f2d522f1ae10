#include "libshard/io/cached_bytes.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <functional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "libshard/core/digest.h"
#include "tests/support/temp_folder.h"

namespace shard {
namespace {

constexpr std::size_t kFileBytes = 5 << 20;

/// A file of kFileBytes, no two pages of which are equal.
class CachedBytes : public testing::Test {
 protected:
  void SetUp() override {
    for (std::size_t i = 0; i < kFileBytes; ++i) bytes_[i] = static_cast<std::byte>(i * 2654435761U >> 13);
    write();
    std::byte byte{};
    const iovec one{&byte, 1};
    if (::preadv2(descriptor_, &one, 1, 0, RWF_NOWAIT) != 1)
      GTEST_SKIP() << "the file system does not report which bytes are cached";
  }
  void TearDown() override { ::close(descriptor_); }
  void write() {
    if (descriptor_ >= 0) ::close(descriptor_);
    descriptor_ = ::open((folder_ / "file").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    ASSERT_EQ(::pwrite(descriptor_, bytes_.data(), kFileBytes, 0), static_cast<ssize_t>(kFileBytes));
  }
  bool copy(std::size_t offset, std::span<std::byte> out, std::uint32_t* crc = nullptr) const {
    return copy_cached_bytes(descriptor_, static_cast<std::int64_t>(offset), out, crc);
  }

  test::TempFolder folder_;
  std::vector<std::byte> bytes_ = std::vector<std::byte>(kFileBytes);
  int descriptor_ = -1;
};

TEST_F(CachedBytes, AreThoseOfTheFileAtAnyOffset) {
  std::vector<std::byte> out(kFileBytes);
  for (const std::size_t offset : {0, 1, 4095, 4096, 70'001}) {
    for (const std::size_t skipped : {0, 8, 17}) {
      const std::size_t count = (3 << 20) - 5 * skipped - offset % 7;
      const std::span<std::byte> part = std::span(out).subspan(skipped, count);
      std::memset(out.data(), 0, out.size());
      std::uint32_t crc = 1;
      ASSERT_TRUE(copy(offset, part, &crc));
      const std::span<const std::byte> expected = std::span(bytes_).subspan(offset, count);
      EXPECT_EQ(std::memcmp(part.data(), expected.data(), count), 0) << offset << " " << skipped;
      EXPECT_EQ(crc, crc32(expected));
      ASSERT_TRUE(copy(offset, part));
      EXPECT_EQ(std::memcmp(part.data(), expected.data(), count), 0);
      EXPECT_EQ(out[skipped + count], std::byte{0});
    }
  }
}

TEST_F(CachedBytes, AreNotCopiedIfTheyAreFewOrBehindTheEnd) {
  std::vector<std::byte> out(kFileBytes);
  EXPECT_FALSE(copy(0, std::span(out).first(4096)));
  EXPECT_FALSE(copy(1, out));
  ASSERT_EQ(::ftruncate(descriptor_, kFileBytes - 10), 0);
  EXPECT_FALSE(copy(0, out)) << "the rest of the last page is mapped, and zero";
}

/// A fault is the only way in which a mapping reports that its pages vanished.
TEST_F(CachedBytes, AreRightOrRefusedIfTheFileIsTruncatedMeanwhile) {
  std::vector<std::byte> out(kFileBytes);
  for (int round = 0; round < 60; ++round) {
    write();
    std::atomic<bool> is_begun = false;
    std::thread other([&] {
      while (!is_begun) std::this_thread::yield();
      const auto end = std::chrono::steady_clock::now() + std::chrono::microseconds(round * 50);
      while (std::chrono::steady_clock::now() < end) std::this_thread::yield();
      EXPECT_EQ(::ftruncate(descriptor_, 0), 0);
    });
    is_begun = true;
    const bool is_copied = copy(0, out);
    other.join();
    EXPECT_TRUE(!is_copied || std::memcmp(out.data(), bytes_.data(), kFileBytes) == 0) << round;
  }
}

/// Memory without pages faults in each run, unlike a file that a different thread truncates.
TEST_F(CachedBytes, AreRefusedIfAPageFaults) {
  const test::TempFolder folder;
  const int empty = ::open((folder / "empty").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  void* const pages = ::mmap(nullptr, kFileBytes, PROT_READ | PROT_WRITE, MAP_SHARED, empty, 0);
  ASSERT_NE(pages, MAP_FAILED);
  for (int round = 0; round < 3; ++round) {
    EXPECT_FALSE(copy(0, std::span(static_cast<std::byte*>(pages), kFileBytes)));
  }
  std::vector<std::byte> out(kFileBytes);
  EXPECT_TRUE(copy(0, out));
  ::munmap(pages, kFileBytes);
  ::close(empty);
}

using CachedBytesDeathTest = CachedBytes;

TEST_F(CachedBytesDeathTest, PassSignalsOfOthersToTheHandlerBefore) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");  // A new process, without a handler.
  std::vector<std::byte> out(kFileBytes);
  const auto raise_after_copy = [&](void (*before)(int)) {
    ::signal(SIGBUS, before);
    if (!copy(0, out)) ::_exit(1);
    ::raise(SIGBUS);
    ::_exit(3);
  };
  EXPECT_EXIT(raise_after_copy([](int) { ::_exit(42); }), testing::ExitedWithCode(42), "");
  EXPECT_EXIT(raise_after_copy(SIG_IGN), testing::ExitedWithCode(3), "");
  EXPECT_EXIT(raise_after_copy(SIG_DFL), testing::KilledBySignal(SIGBUS), "");
}

TEST_F(CachedBytesDeathTest, AreCopiedWhileAnotherProcessSendsTheSignal) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  static std::atomic<int> received = 0;
  std::vector<std::byte> out(kFileBytes);
  const auto copy_meanwhile = [&] {
    ::signal(SIGBUS, [](int) { ++received; });
    if (!copy(0, out)) ::_exit(1);
    const pthread_t self = ::pthread_self();
    std::atomic<bool> is_ended = false;
    std::thread other([&] {
      for (int i = 0; i < 500; ++i) {
        ::pthread_kill(self, SIGBUS);
        std::this_thread::sleep_for(std::chrono::microseconds(100));
      }
      is_ended = true;
    });
    bool is_copied = true;
    while (!is_ended) is_copied = copy(0, out) && is_copied;
    other.join();
    ::_exit(is_copied && received > 0 ? 3 : 2);
  };
  EXPECT_EXIT(copy_meanwhile(), testing::ExitedWithCode(3), "");
}

TEST_F(CachedBytesDeathTest, CallAHandlerForOneSignalOnce) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  std::vector<std::byte> out(kFileBytes);
  const auto raise_twice = [&] {
    struct sigaction once {};
    once.sa_handler = [](int) {};
    once.sa_flags = static_cast<int>(SA_RESETHAND);
    ::sigaction(SIGBUS, &once, nullptr);
    if (!copy(0, out)) ::_exit(1);
    ::raise(SIGBUS);
    ::raise(SIGBUS);
    ::_exit(3);
  };
  EXPECT_EXIT(raise_twice(), testing::KilledBySignal(SIGBUS), "");
}

TEST_F(CachedBytesDeathTest, AreNotCopiedIfFaultsCannotBeCaught) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  std::vector<std::byte> out(kFileBytes);
  const auto copy_after = [&](const std::function<void()>& change) {
    if (!copy(0, out)) ::_exit(1);
    change();
    ::_exit(copy(0, out) ? 2 : 3);
  };
  EXPECT_EXIT(copy_after([] {
                sigset_t all;
                sigfillset(&all);
                ::pthread_sigmask(SIG_BLOCK, &all, nullptr);
              }),
              testing::ExitedWithCode(3), "");
  EXPECT_EXIT(copy_after([] { ::signal(SIGBUS, SIG_DFL); }), testing::ExitedWithCode(3), "");
}

}  // namespace
}  // namespace shard
