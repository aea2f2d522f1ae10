#include "libshard/exec/buffer_pool.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <random>
#include <thread>
#include <vector>

namespace shard {
namespace {

using std::chrono::milliseconds;

/// Waits until a condition is true; false after some seconds.
template <class Condition>
bool comes_true(const Condition& condition) {
  for (int i = 0; i < 5000 && !condition(); ++i) std::this_thread::sleep_for(milliseconds(1));
  return condition();
}

TEST(BufferPool, BuffersBeginAtAPage) {
  BufferPool pool(1 << 20);
  for (const std::int64_t bytes : {1, 100, 5000, 1 << 20}) {
    Buffer buffer(pool);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(buffer.ensure(bytes).data()) % 4096, 0U) << bytes;
  }
}

TEST(BufferPool, NeverLendsMoreThanItsLimit) {
  constexpr std::int64_t kLimit = 1000;
  BufferPool pool(kLimit);
  std::atomic<std::int64_t> lent{0}, most{0};
  {
    std::vector<std::jthread> workers;
    for (unsigned seed = 0; seed < 6; ++seed) {
      workers.emplace_back([&, seed] {
        std::mt19937 random(seed);
        for (int i = 0; i < 300; ++i) {
          const std::int64_t bytes = 1 + static_cast<std::int64_t>(random() % 600);
          Buffer buffer(pool);
          EXPECT_GE(static_cast<std::int64_t>(buffer.ensure(bytes).size()), bytes);
          const std::int64_t now = lent += bytes;
          for (std::int64_t seen = most; seen < now && !most.compare_exchange_weak(seen, now);) {
          }
          if (i % 16 == 0) std::this_thread::yield();
          lent -= bytes;
        }
      });
    }
  }
  EXPECT_LE(most, kLimit);
  EXPECT_GT(most, 600) << "several are lent at once";
}

TEST(BufferPool, LendsAllOfItsLimitAtOnce) {
  BufferPool pool(100);
  Buffer a(pool), b(pool);
  a.ensure(40);
  EXPECT_EQ(b.ensure(60).size(), 60U);
}

TEST(BufferPool, MakesTheNextWaitUntilMemoryIsGivenBack) {
  BufferPool pool(100);
  auto first = std::make_unique<Buffer>(pool);
  first->ensure(60);
  std::atomic<bool> has{false};
  std::jthread waiter([&] {
    Buffer second(pool);
    second.ensure(41);
    has = true;
  });
  std::this_thread::sleep_for(milliseconds(30));
  EXPECT_FALSE(has);
  first.reset();
  EXPECT_TRUE(comes_true([&] { return has.load(); }));
}

TEST(BufferPool, LendsMoreThanItsLimitToOneAlone) {
  BufferPool pool(100);
  Buffer buffer(pool);
  EXPECT_EQ(buffer.ensure(500).size(), 500U);
}

TEST(BufferPool, ServesALargeRequestBeforeSmallOnesThatCameLater) {
  BufferPool pool(100);
  auto held = std::make_unique<Buffer>(pool);
  held->ensure(50);
  std::atomic<int> served{0}, large_was{0}, small_was{0};
  std::jthread large([&] {
    Buffer buffer(pool);
    buffer.ensure(90);
    large_was = ++served;
  });
  std::this_thread::sleep_for(milliseconds(50));
  std::jthread small([&] {
    Buffer buffer(pool);
    buffer.ensure(20);  // Would fit at once, but for the one before it.
    small_was = ++served;
  });
  std::this_thread::sleep_for(milliseconds(50));
  EXPECT_EQ(served, 0);
  held.reset();
  EXPECT_TRUE(comes_true([&] { return served == 2; }));
  EXPECT_EQ(large_was, 1);
  EXPECT_EQ(small_was, 2);
}

TEST(Buffer, IsKeptWhileItIsLargeEnoughAndNobodyWaits) {
  BufferPool pool(1000);
  Buffer buffer(pool);
  const std::byte* const first = buffer.ensure(100).data();
  EXPECT_EQ(buffer.ensure(60).data(), first);
  EXPECT_EQ(buffer.ensure(100).data(), first);
  EXPECT_EQ(buffer.ensure(101).size(), 101U);
}

TEST(Buffer, IsGivenUpToThoseThatWait) {
  BufferPool pool(100);
  Buffer mine(pool);
  mine.ensure(100);
  std::atomic<bool> has{false};
  std::jthread waiter([&] {
    Buffer other(pool);
    other.ensure(100);
    has = true;
  });
  EXPECT_TRUE(comes_true([&] {
    mine.ensure(10);  // Large enough already, but a thread waits.
    return has.load();
  }));
}

}  // namespace
}  // namespace shard
