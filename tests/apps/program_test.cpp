// The program as a whole in memory: exit codes, streams, help, pages, progress and the log.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "apps/shardctl/session/versions.h"
#include "tests/apps/world.h"

namespace shard::app {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

TEST_F(Verbs, ADamagedSourceIsExit4) {
  world.put("/cut.safetensors", small_model().substr(0, small_model().size() - 1));
  EXPECT_EQ(world.run({"inspect", "/cut.safetensors"}), 4);
}

TEST_F(Verbs, JsonFailuresAreADocumentOnStdout) {
  EXPECT_EQ(world.run({"inspect", "/absent", "--json"}), 3);
  EXPECT_THAT(world.out,
              StartsWith(R"({"schema": "shardctl.error/1", "verb": "inspect", "code": 3, "kind": "not_found")"));
}

TEST_F(Verbs, UsageFailuresAreADocumentToo) {
  EXPECT_EQ(world.run({"inspect", "--json"}), 2);
  EXPECT_THAT(world.out, HasSubstr("\"code\": 2, \"kind\": \"invalid_argument\""));
}

TEST_F(Verbs, NoVerbIsShortHelpAndExit2) {
  EXPECT_EQ(world.run({}), 2);
  EXPECT_EQ(world.out, "");
  EXPECT_THAT(world.err, HasSubstr("Usage: shardctl"));
}

TEST_F(Verbs, ColoursErrorsOnATerminalOnly) {
  world.run({"inspect", "/absent"});
  EXPECT_THAT(world.err, Not(HasSubstr("\x1b[")));
  world.err_is_terminal = true;
  world.run({"inspect", "/absent"});
  EXPECT_THAT(world.err, HasSubstr("\x1b[1;31merror:"));
}

TEST_F(Verbs, HonoursNoColor) {
  world.err_is_terminal = true;
  world.env["NO_COLOR"] = "1";
  world.run({"inspect", "/absent"});
  EXPECT_THAT(world.err, Not(HasSubstr("\x1b[")));
}

TEST_F(Verbs, PagesHoldTheDocumentOfJson) {
  ASSERT_EQ(world.run({"inspect", "/m.safetensors", "--html", "/page.html", "--json"}), 0) << world.err;
  const auto bytes = world.state->content("/page.html");
  EXPECT_THAT(std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size()), HasSubstr(">" + world.out + "<"));
}

TEST_F(Verbs, PagesAreReplacedWithForceOnly) {
  world.put("/page.html", "old");
  EXPECT_EQ(world.run({"verify", "/m.safetensors", "--html", "/page.html"}), 5);
  EXPECT_EQ(world.state->content("/page.html").size(), 3U);
  EXPECT_EQ(world.run({"verify", "/m.safetensors", "--html", "/page.html", "--force"}), 0);
  EXPECT_GT(world.state->content("/page.html").size(), 1000U);
}

TEST_F(Verbs, PagesReplaceNeitherSourcesNorFolders) {
  world.put("/folder/file", "");
  for (const char* page : {"/m.safetensors", "/folder"}) {
    EXPECT_EQ(world.run({"inspect", "/m.safetensors", "--html", page, "--force"}), 5) << page;
  }
  EXPECT_EQ(world.run({"inspect", "/m.safetensors", "--html", "/absent/page.html"}), 6);
  EXPECT_EQ(world.run({"inspect", "/m.safetensors", "--html", ""}), 2);
}

TEST_F(Verbs, PagesOfSeveralRanksAreRankZeros) {
  world.put("/n.safetensors", small_model("abABCDEFGX"));
  ASSERT_EQ(world.run({"diff", "/m.safetensors", "/n.safetensors", "--html", "/one.html", "-q"}), 1) << world.err;
  ASSERT_EQ(world.run({"diff", "/m.safetensors", "/n.safetensors", "--html", "/two.html", "-q", "--local-ranks", "2"}),
            1);
  EXPECT_EQ(world.state->content("/one.html"), world.state->content("/two.html"));
}

TEST_F(Verbs, InterruptedRunsWriteNoPage) {
  world.stop.request_stop();
  EXPECT_EQ(world.run({"inspect", "/m.safetensors", "--html", "/page.html"}), 130);
  EXPECT_EQ(world.fs->status("/page.html").kind, FileKind::kAbsent);
}

TEST_F(Verbs, TheErrorFileOfTorchrunReplacesNoFolder) {
  world.put("/kept/file", "x");
  world.env = {{"RANK", "0"},
               {"WORLD_SIZE", "1"},
               {"MASTER_ADDR", "localhost"},
               {"MASTER_PORT", "1"},
               {"TORCHELASTIC_ERROR_FILE", "/kept"}};
  EXPECT_EQ(world.run({"inspect", "/absent"}), 3);
  EXPECT_THAT(world.state->paths(), ::testing::Contains("/kept/file"));
  world.env["TORCHELASTIC_ERROR_FILE"] = "/told.json";
  EXPECT_EQ(world.run({"inspect", "/absent"}), 3);
  EXPECT_THAT(world.state->paths(), ::testing::Contains("/told.json"));
}

TEST_F(Verbs, VersionIsOneLine) {
  EXPECT_EQ(world.run({"--version"}), 0);
  EXPECT_EQ(world.out, "shardctl " + own_version() + "\n");
}

TEST_F(Verbs, EnvIsADocument) {
  EXPECT_EQ(world.run({"env", "--json"}), 0);
  EXPECT_THAT(world.out, HasSubstr(R"("launcher": "none", "rank": 0, "world_size": 1)"));
}

TEST_F(Verbs, HelpOfAVerbIsTheSameInThreeWays) {
  EXPECT_EQ(world.run({"help", "diff"}), 0);
  const std::string text = world.out;
  world.run({"diff", "--help"});
  EXPECT_EQ(world.out, text);
  world.run({"-h", "diff"});
  EXPECT_EQ(world.out, text);
}

TEST_F(Verbs, ProgressAsJsonEndsWithTheTotalAndItsRate) {
  world.run({"gather", "/m.safetensors", "-o", "/out.safetensors", "--progress", "json"});
  EXPECT_THAT(world.err,
              HasSubstr(R"({"schema": "shardctl.progress/1", "what": "gather", "bytes_done": 10, "bytes_total": 10)"));
  EXPECT_THAT(world.err, ::testing::ContainsRegex(R"("bytes_per_second": [0-9.]+, "seconds_left": 0.000)"));
}

TEST_F(Verbs, ProgressAsJsonIsTheSumOfAllRanks) {
  world.run({"split", "/m.safetensors", "-o", "/out", "--progress", "json", "--ranks", "2", "--local-ranks", "2"});
  EXPECT_THAT(world.err, HasSubstr(R"("rank": null})"));
  EXPECT_THAT(world.err, ::testing::Not(HasSubstr(R"("rank": 0)")));
}

TEST_F(Verbs, TheLogTellsWhatEachRankDid) {
  world.run({"split", "/m.safetensors", "-o", "/out", "-v", "--ranks", "2", "--local-ranks", "2"});
  EXPECT_THAT(world.err, ::testing::ContainsRegex("rank 0 of 2 on .*: split 0 bytes in [0-9.]+ s"));
  EXPECT_THAT(world.err, ::testing::ContainsRegex("rank 1 of 2 on .*: split 10 bytes in [0-9.]+ s"));
}

TEST_F(Verbs, TheLogSaysWhatIsDone) {
  world.run({"inspect", "/m.safetensors", "-v"});
  EXPECT_THAT(world.err, HasSubstr("opened /m.safetensors as safetensors: 2 tensors, 0 objects, 1 file\n"));
}

TEST_F(Verbs, AnErrorNamesTheVariableOrTheFileThatSetsAnOption) {
  world.env = {{"SHARDCTL_TO", "no-format"}};
  expect_refusals({{{"convert", "/m.safetensors", "-o", "/o"}, 2, "why:  SHARDCTL_TO sets --to"}});
  world.env = {{"SHARDCTL_LIKE", "/no/such"}};
  expect_refusals({{{"split", "/m.safetensors", "-o", "/o", "--to", "dcp"}, 3, "why:  SHARDCTL_LIKE sets --like"}});
  world.env = {};
  world.put("/c.toml", "rename = 'rule'\n");
  expect_refusals({{{"digest", "/m.safetensors", "--config", "/c.toml"}, 2, "/c.toml sets --rename"}});
  world.put("/c.toml", "add-prefix = ''\n");
  EXPECT_EQ(world.run({"digest", "/absent", "--config", "/c.toml"}), 3);
  EXPECT_THAT(world.err, ::testing::Not(HasSubstr("c.toml")));
  world.env = {{"SHARDCTL_CAST", "all"}};
  expect_refusals({{{"digest", "/m.safetensors"}, 2, "SHARDCTL_CAST sets --cast; expected GLOB=DTYPE, found all"}});
  EXPECT_EQ(world.run({"digest", "/m.safetensors", "--cast", "GLOB"}), 2);
  EXPECT_THAT(world.err, ::testing::Not(HasSubstr("SHARDCTL")));
}

}  // namespace
}  // namespace shard::app
