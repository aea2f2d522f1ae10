// A format needs only its own files: every verb accepts formats that the program does not name.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "formats/plugins.h"
#include "tests/apps/world.h"

namespace shard::app {
namespace {

using ::testing::HasSubstr;

/// Formats are registered for the whole process, and each test may run in one of its own.
struct ToyFormat : ::testing::Test {
  ToyFormat() {
    load_format_plugin(SHARD_TOY_FORMATS);
    world.put("/one", "TOY1 and more");
    world.put("/two", "TOY2 and more");
  }
  std::string content(const std::string& path) {
    const auto bytes = world.state->content(path);
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
  }
  void run(const std::vector<std::string>& words, int code = 0) { ASSERT_EQ(world.run(words), code) << world.err; }

  World world;
};

TEST_F(ToyFormat, IsReadByEveryVerb) {
  for (const std::string verb : {"inspect", "verify", "digest"}) run({verb, "/one"});
  run({"inspect", "/one", "--json"});
  EXPECT_THAT(world.out, HasSubstr(R"("toy")"));
  run({"cat", "/one", "x"});
  run({"gather", "/one", "-o", "/x.safetensors"});
  run({"diff", "/one", "/x.safetensors"});
}

TEST_F(ToyFormat, IsWrittenBySuffixAndByName) {
  run({"gather", "/one", "-o", "/x.safetensors"});
  run({"convert", "/x.safetensors", "-o", "/back.toy"});
  EXPECT_EQ(content("/back.toy"), "TOY1 and more");
  run({"convert", "/one", "-o", "/y.toy", "--to", "toy"});
  EXPECT_EQ(content("/y.toy"), "TOY1 and more");
}

TEST_F(ToyFormat, SupersedesTheFormatThatItNames) {
  run({"inspect", "/two", "--json"});
  EXPECT_THAT(world.out, HasSubstr(R"("toy-two")"));
}

TEST_F(ToyFormat, HasItsOwnOption) {
  run({"convert", "/two", "-o", "/bare.toy2", "--toy-end", "bare"});
  EXPECT_EQ(content("/bare.toy2"), "TOY2 and more");
  run({"convert", "/two", "-o", "/marked.toy2", "--toy-end", "mark"});
  EXPECT_EQ(content("/marked.toy2"), "TOY2 and more!");
  run({"convert", "/two", "-o", "/other.toy2", "--toy-end", "star"}, 2);
  run({"convert", "/two", "-o", "/x.safetensors", "--toy-end", "mark"}, 2);
  EXPECT_THAT(world.err, HasSubstr("--toy-end applies only to toy-two, but the output format is safetensors"));
  run({"help", "convert"});
  EXPECT_THAT(world.out, HasSubstr("--toy-end"));
}

TEST_F(ToyFormat, IsListedByVersion) {
  run({"version"});
  EXPECT_THAT(world.out, HasSubstr("toy-two"));
}

}  // namespace
}  // namespace shard::app
