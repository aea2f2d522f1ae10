#include "libshard/core/pages.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

namespace shard {
namespace {

std::span<std::byte> without_ends(std::vector<std::byte>& data) { return std::span(data).subspan(3, data.size() - 10); }

TEST(Pages, TakingThemLeavesTheDataAsItIs) {
  std::vector<std::byte> a(5'000'001, std::byte{1}), b(70'000, std::byte{2}), c;
  take_pages({without_ends(a), without_ends(b), std::span(c)}).join();
  EXPECT_EQ(std::ranges::count(a, std::byte{1}), std::ssize(a));
  EXPECT_EQ(std::ranges::count(b, std::byte{2}), std::ssize(b));
}

TEST(Pages, DataMayBeWrittenWhileTheyAreTaken) {
  std::vector<std::byte> data;
  data.reserve(20'000'000);
  const std::jthread taking = take_pages({std::span(data.data(), data.capacity())});
  for (std::size_t i = 0; i < data.capacity(); ++i) data.push_back(static_cast<std::byte>(i % 251));
  for (std::size_t i = 0; i < data.size(); ++i) ASSERT_EQ(data[i], static_cast<std::byte>(i % 251)) << i;
}

}  // namespace
}  // namespace shard
