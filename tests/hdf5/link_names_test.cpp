#include <gtest/gtest.h>

#include <random>
#include <set>

#include "formats/hdf5/entry_paths.h"

namespace shard::hdf5 {
namespace {

using std::string_literals::operator""s;

TEST(LinkNames, EveryKeyComesBack) {
  const std::uint64_t seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937_64 random(seed);
  std::set<std::string> names, keys;
  for (int i = 0; i < 20000; ++i) {
    std::string key;
    for (auto length = random() % 6; length > 0; --length) key.push_back("/%.\0a2F5E"s[random() % 9]);
    const std::string name = link_name(key);
    EXPECT_EQ(key_of_link(name), key);
    EXPECT_FALSE(name.empty() || name == "." || name == "..");
    EXPECT_EQ(name.find_first_of("/\0"s), name.npos);
    names.insert(name);
    keys.insert(key);
  }
  EXPECT_EQ(names.size(), keys.size());
}

TEST(LinkNames, UsualKeysStayAsTheyAre) {
  for (const char* key : {"weight", "layer.0.weight", "ünï 名", "0", ".hidden", "..."}) EXPECT_EQ(link_name(key), key);
}

TEST(LinkNames, OtherTextIsKept) { EXPECT_EQ(key_of_link("100%"), "100%"); }

}  // namespace
}  // namespace shard::hdf5
