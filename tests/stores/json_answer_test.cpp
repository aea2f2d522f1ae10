// JSON of servers: no document is trusted.
#include "libshard/stores/remote/json_answer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

namespace shard::stores {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

/// The largest resident memory so far, in bytes.
std::int64_t most_memory() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  return usage.ru_maxrss * 1024;
}

/// An object with many values that are much larger in memory than as text.
std::string many_objects(int count) {
  std::string text = R"({"weight_map":{"a":"f"},"x":[)";
  for (int i = 0; i < count; ++i) text += "{},";
  return text + "{}]}";
}

TEST(ServerIndex, HasTheFilesOfItsMap) {
  EXPECT_THAT(files_in_index(R"({"metadata": {"weight_map": "m"}, "weight_map": {"a": "2", "b": "1", "c": "2", "d": 3,
                              "e": ["l"], "f": {"weight_map": "n"}}, "more": {"a": "o"}})"),
              ElementsAre("1", "2"));
  for (const char* text : {"", "[]", "{", R"({"weight_map": {"a": "b"})", R"({"weight_map": ["a"]})",
                           R"([{"weight_map": {"a": "b"}}])", R"({"weight_map": "a"})"}) {
    EXPECT_THAT(files_in_index(text), IsEmpty()) << text;
  }
}

TEST(ServerIndex, OnlyItsFilesTakeMemory) {
  const std::string text = many_objects(5'000'000);
  const std::int64_t before = most_memory();
  EXPECT_THAT(files_in_index(text), ElementsAre("f"));
  EXPECT_LT(most_memory() - before, 100 << 20);  // A tree needs 500 MB.
}

TEST(ServerAnswer, IsNullIfItIsNotJsonOrIsLargeInMemory) {
  EXPECT_EQ(parse_answer(R"({"a": 1, "a": 2})").at("a"), 2);
  for (const std::string& text : {std::string(), std::string("{"), std::string(100'000, '['), many_objects(100'000)}) {
    EXPECT_TRUE(parse_answer(text).is_null());
  }
}

}  // namespace
}  // namespace shard::stores
