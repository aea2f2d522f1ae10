// --if-changed does nothing if DST's manifest matches the expected output, and otherwise writes everything again.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/verify/verify_world.h"

namespace shard::app {
namespace {

using ::testing::HasSubstr;
using ::testing::IsSupersetOf;

class IfChanged : public ::testing::Test {
 protected:
  VerifyWorld world;

  void SetUp() override { world.put("/m.safetensors", small_model()); }

  int convert(std::vector<std::string> more = {}) {
    std::vector<std::string> arguments{"convert", "/m.safetensors", "-o", "/o.pt", "--if-changed", "--json"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return world.run(arguments);
  }
  bool is_unchanged() const { return nlohmann::json::parse(world.out).at("unchanged").get<bool>(); }
};

TEST_F(IfChanged, WritesTheManifestAndThenNothing) {
  ASSERT_EQ(convert(), 0) << world.err;
  EXPECT_FALSE(is_unchanged());
  EXPECT_THAT(world.state->paths(), IsSupersetOf({"/o.pt", "/o.pt.manifest.json"}));
  const std::int64_t before = world.state->calls();
  ASSERT_EQ(convert(), 0) << world.err;
  EXPECT_TRUE(is_unchanged());
  EXPECT_LT(world.state->calls() - before, 40);
  const std::vector<std::string> log = world.state->log();
  for (std::size_t i = static_cast<std::size_t>(before); i < log.size(); ++i) EXPECT_FALSE(log[i].starts_with("write"));
}

TEST_F(IfChanged, ASourceThatChangedIsDoneAgainWithForceOnly) {
  ASSERT_EQ(convert(), 0) << world.err;
  world.put("/m.safetensors", small_model("abABCDEFGZ"));
  EXPECT_EQ(convert(), 5);
  EXPECT_THAT(world.err, HasSubstr("already exists"));
  ASSERT_EQ(convert({"--force"}), 0) << world.err;
  EXPECT_FALSE(is_unchanged());
  ASSERT_EQ(convert(), 0);
  EXPECT_TRUE(is_unchanged());
}

TEST_F(IfChanged, OtherOptionsAreDoneAgain) {
  ASSERT_EQ(convert(), 0) << world.err;
  EXPECT_EQ(convert({"--add-prefix", "x."}), 5);
  EXPECT_EQ(convert({"--checksum", "sha256"}), 5);
  ASSERT_EQ(convert({"-j", "2", "--max-memory", "32MiB"}), 0) << "these decide nothing of the output";
  EXPECT_TRUE(is_unchanged());
}

/// Line breaks in values hide no difference.
TEST_F(IfChanged, ValuesAreToldApartWhateverTheyHold) {
  ASSERT_EQ(convert({"--exclude", "a\nb", "--exclude", "c"}), 0) << world.err;
  ASSERT_EQ(convert({"--exclude", "a\nb", "--exclude", "c"}), 0) << world.err;
  EXPECT_TRUE(is_unchanged());
  EXPECT_EQ(convert({"--exclude", "a", "--exclude", "b\nc"}), 5);
}

TEST_F(IfChanged, NamesOfFilesNeedNotBeUtf8) {
  for (const char* name : {"/in/a\xFF.safetensors", "/in/a\xFE.safetensors"}) {
    world.put(name, small_model());
    const std::vector<std::string> line{"convert", name, "-o", "/o.pt", "--if-changed", "--json", "--force"};
    ASSERT_EQ(world.run(line), 0) << world.err;
    EXPECT_FALSE(is_unchanged());
    ASSERT_EQ(world.run(line), 0) << world.err;
    EXPECT_TRUE(is_unchanged());
  }
}

TEST_F(IfChanged, ARepairByAnotherCheckpointIsDoneAgain) {
  for (const char* folder : {"/lost", "/a", "/b"}) {
    ASSERT_EQ(world.run({"split", "/m.safetensors", "-o", folder, "--ranks", "2", "-q"}), 0) << world.err;
  }
  world.fs->remove_all("/lost/.metadata");
  world.put("/b/.metadata", world.content("/b/.metadata"));  // With a different time.
  const auto repair = [&](const std::string& like) {
    return world.run({"repair", "/lost", "-o", "/r", "--like", like, "--if-changed", "--json"});
  };
  ASSERT_EQ(repair("/a"), 0) << world.err;
  ASSERT_EQ(repair("/a"), 0) << world.err;
  EXPECT_TRUE(is_unchanged());
  EXPECT_EQ(repair("/b"), 5);
}

/// The folder of config and tokenizer may contain the output.
TEST_F(IfChanged, AnExportBesideItsTokenizerIsUnchanged) {
  world.put("/hf/model.safetensors", small_model());
  world.put("/hf/config.json", "{}");
  world.put("/hf/tokenizer.json", "{}");
  const std::vector<std::string> line{"export", "/hf/model.safetensors", "-o", "/hf/out", "--if-changed", "--json"};
  ASSERT_EQ(world.run(line), 0) << world.err;
  ASSERT_EQ(world.run(line), 0) << world.err;
  EXPECT_TRUE(is_unchanged());
  world.put("/hf/tokenizer.json", "{ }");
  EXPECT_EQ(world.run(line), 5);
}

TEST_F(IfChanged, AnOutputThatLostAFileIsDoneAgain) {
  const std::vector<std::string> split{"split", "/m.safetensors", "-o",    "/d", "--shards",
                                       "2",     "--if-changed",   "--json"};
  ASSERT_EQ(world.run(split), 0) << world.err;
  ASSERT_EQ(world.run(split), 0);
  EXPECT_TRUE(is_unchanged());
  world.fs->remove_all("/d/model-00001-of-00002.safetensors");
  EXPECT_EQ(world.run(split), 5);
}

TEST_F(IfChanged, ADamagedManifestSaysNothing) {
  ASSERT_EQ(convert(), 0) << world.err;
  world.flip("/o.pt.manifest.json", 100, 0);
  EXPECT_EQ(convert(), 5);
}

TEST_F(IfChanged, WorksWithRanks) {
  ASSERT_EQ(convert({"--local-ranks", "3"}), 0) << world.err;
  ASSERT_EQ(convert({"--local-ranks", "2"}), 0) << world.err;
  EXPECT_TRUE(is_unchanged());
}

TEST_F(IfChanged, WorksWithRanksThatWriteForThemselves) {
  for (const char* const to : {"/o.safetensors", "/d"}) {
    std::vector<std::string> words{"convert",        "/m.safetensors", "-o",     to,
                                   "--to",           "safetensors",    "--json", "--if-changed",
                                   "--local-output", "--local-ranks"};
    words.emplace_back("2");
    ASSERT_EQ(world.run(words), 0) << world.err;
    EXPECT_FALSE(is_unchanged());
    ASSERT_EQ(world.run(words), 0) << world.err;
    EXPECT_TRUE(is_unchanged());
    words.back() = "3";
    EXPECT_EQ(world.run(words), 5) << "files may lie with other ranks then";
  }
}

}  // namespace
}  // namespace shard::app
