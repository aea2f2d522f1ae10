#include "libshard/catalog/name_order.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <numeric>
#include <random>
#include <string>
#include <thread>

namespace shard {
namespace {

bool never(std::uint32_t, std::uint32_t) { return false; }

std::vector<std::uint32_t> order_by_comparison(std::span<const std::string_view> names) {
  std::vector<std::uint32_t> order(names.size());
  std::iota(order.begin(), order.end(), 0U);
  std::ranges::stable_sort(order, {}, [&](std::uint32_t i) { return names[i]; });
  return order;
}

/// Names from few letters, so that they share prefixes, are prefixes of each other and occur several times.
std::vector<std::string> random_names(std::mt19937& random, std::size_t count) {
  constexpr std::string_view kLetters{"ab\0\xFF.", 5};
  std::vector<std::string> names(count);
  for (std::string& name : names) {
    if (random() % 2 == 0) name = std::string(random() % 40, 'a');
    for (std::size_t i = random() % 20; i > 0; --i) name += kLetters[random() % kLetters.size()];
  }
  return names;
}

TEST(NameOrder, IsThatOfAStableSortByComparison) {
  std::mt19937 random(1);
  for (std::size_t count = 0; count < 300; ++count) {
    const std::vector<std::string> names = random_names(random, count);
    const std::vector<std::string_view> views(names.begin(), names.end());
    EXPECT_EQ(order_of_names(views, never, 1), order_by_comparison(views)) << count;
  }
}

/// So many that all threads sort, in runs of very different sizes.
TEST(NameOrder, ManyNamesAreInTheSameOrder) {
  std::mt19937 random(2);
  std::vector<std::string> names = random_names(random, 20'000);
  for (int i = 0; i < 60'000; ++i)
    names.push_back("layers." + std::to_string(i / 200) + ".experts." + std::to_string(i % 200));
  std::ranges::shuffle(names, random);
  const std::vector<std::string_view> views(names.begin(), names.end());
  for (const int threads : {1, 3}) EXPECT_EQ(order_of_names(views, never, threads), order_by_comparison(views));
}

TEST(NameOrder, NamesThatEndInNulsFollowShorterOnes) {
  const std::vector<std::string> names{
      std::string("a\0\0", 3), "a", std::string("a\0", 2), "", std::string("abcdefgh\0", 9), "abcdefgh", "abcdefg"};
  const std::vector<std::string_view> views(names.begin(), names.end());
  EXPECT_EQ(order_of_names(views, never, 1), (std::vector<std::uint32_t>{3, 1, 2, 0, 6, 5, 4}));
}

TEST(NameOrder, TiesAreDecidedByTheCaller) {
  const std::vector<std::string_view> names{"b", "a", "a", "a"};
  const std::vector<int> ranks{0, 2, 1, 2};
  const auto by_rank = [&](std::uint32_t a, std::uint32_t b) { return ranks[a] < ranks[b]; };
  EXPECT_EQ(order_of_names(names, by_rank, 1), (std::vector<std::uint32_t>{2, 1, 3, 0}));
}

TEST(NameOrder, OneThreadIsThatOfTheCaller) {
  std::vector<std::string> names;
  for (int i = 0; i < 80'000; ++i) names.push_back("layers." + std::to_string(i / 16) + "." + std::to_string(i % 8));
  const std::vector<std::string_view> views(names.begin(), names.end());
  const auto caller = std::this_thread::get_id();
  std::atomic<int> elsewhere = 0;
  const auto tie_less = [&](std::uint32_t a, std::uint32_t b) {
    elsewhere += std::this_thread::get_id() != caller ? 1 : 0;
    return a < b;
  };
  order_of_names(views, tie_less, 1);
  EXPECT_EQ(elsewhere, 0);
}

/// A long prefix is skipped at once, at any depth.
TEST(NameOrder, LongNamesCostTheirBytes) {
  const std::string prefix(1 << 20, 'x');
  std::vector<std::string> names;
  for (int i = 9; i >= 0; --i) names.push_back(prefix + std::to_string(i) + prefix);
  const std::vector<std::string_view> views(names.begin(), names.end());
  EXPECT_EQ(order_of_names(views, never, 1), (std::vector<std::uint32_t>{9, 8, 7, 6, 5, 4, 3, 2, 1, 0}));
}

}  // namespace
}  // namespace shard
