#include "libshard/core/hash_table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <random>
#include <string>

namespace shard {
namespace {

using ::testing::ElementsAre;

TEST(KeyedHash, GivesEqualKeysOneHash) {
  const KeyedHash a, b;
  const std::string text = "layers.0.weight";
  EXPECT_EQ(a(text), b(std::string_view(text)));
  EXPECT_EQ(a(7), b(std::uint64_t{7}));
  const std::vector<std::int64_t> numbers{1, -2, 3};
  EXPECT_EQ(a(numbers), b(std::span<const std::int64_t>(numbers)));
}

TEST(KeyedHash, TellsPairsFromTheirMirrorImages) {
  const KeyedHash hash;
  EXPECT_NE(hash(std::pair(1, 2)), hash(std::pair(2, 1)));
}

TEST(HashMap, FindsWhatWasInsertedAndNothingElse) {
  HashMap<std::string, int> map;
  EXPECT_EQ(map.find("a"), nullptr);
  EXPECT_TRUE(map.try_emplace("a", 1).is_new);
  EXPECT_FALSE(map.try_emplace(std::string_view("a"), 2).is_new);
  EXPECT_EQ(*map.find(std::string_view("a")), 1);
  EXPECT_FALSE(map.contains("b"));
  EXPECT_EQ(++map["b"], 1);
  EXPECT_EQ(map.size(), 2U);
}

TEST(HashMap, HoldsValuesThatCannotBeCopied) {
  HashMap<std::string, std::unique_ptr<int>> map;
  for (int i = 0; i < 100; ++i) map[std::to_string(i)] = std::make_unique<int>(i);
  EXPECT_EQ(**map.find("57"), 57);
}

TEST(HashMap, IsWalkedInOrderOfInsertion) {
  HashMap<std::string, int> map;
  std::vector<std::string> expected, found;
  for (int i = 1000; i-- > 0;) {
    expected.push_back(std::to_string(i * 7919 % 1000));
    map[expected.back()] = i;
    map[expected.front()] = i;
  }
  for (const auto& [key, value] : map.entries()) found.push_back(key);
  EXPECT_EQ(found, expected);
}

TEST(HashMap, IsEmptyAfterClear) {
  HashMap<int, int> map;
  map[1] = 2;
  map.clear();
  EXPECT_TRUE(map.empty());
  EXPECT_FALSE(map.contains(1));
  EXPECT_TRUE(map.try_emplace(1, 3).is_new);
}

TEST(HashMap, AgreesWithAnOrderedMap) {
  std::mt19937_64 random(1);
  HashMap<std::int64_t, std::uint64_t> map;
  map.reserve(10);
  std::map<std::int64_t, std::uint64_t> expected;
  for (int i = 0; i < 20'000; ++i) {
    const auto key = static_cast<std::int64_t>(random() % 8192) << 32;
    const std::uint64_t value = random();
    EXPECT_EQ(map.try_emplace(key, value).is_new, expected.try_emplace(key, value).second);
  }
  ASSERT_EQ(map.size(), expected.size());
  for (const auto& [key, value] : expected) ASSERT_EQ(*map.find(key), value);
}

TEST(HashSet, HoldsEachKeyOnce) {
  HashSet<std::string_view> set;
  EXPECT_TRUE(set.insert("b"));
  EXPECT_TRUE(set.insert("a"));
  EXPECT_FALSE(set.insert("b"));
  EXPECT_TRUE(set.contains("a"));
  EXPECT_FALSE(set.contains("c"));
  EXPECT_THAT(set.keys(), ElementsAre("b", "a"));
}

TEST(HashSlots, ComparesEntriesOfOneHash) {
  HashSlots slots;
  const auto never = [](std::uint32_t) { return false; };
  for (std::uint32_t i = 0; i < 100; ++i) EXPECT_EQ(slots.find_or_add(42, never), i);
  EXPECT_EQ(slots.find(42, [](std::uint32_t entry) { return entry == 63; }), 63U);
  EXPECT_EQ(slots.find(43, [](std::uint32_t) { return true; }), HashSlots::kNone);
}

}  // namespace
}  // namespace shard
