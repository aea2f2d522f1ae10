#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>

#include "apps/shardctl/session/versions.h"
#include "libshard/core/short_text.h"
#include "tests/apps/world.h"

namespace shard::app {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

struct Verbs : ::testing::Test {
  Verbs() { world.put("/m.safetensors", small_model()); }
  World world;
};

// ---- Pages.

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

// ---- inspect.

TEST_F(Verbs, InspectPrintsALineATensor) {
  EXPECT_EQ(world.run({"inspect", "/m.safetensors"}), 0);
  EXPECT_THAT(world.out, StartsWith("/m.safetensors: safetensors"));
  EXPECT_THAT(world.out, HasSubstr("\nname\tdtype\tshape\tsize\tsharding\tfile\n"));
  EXPECT_THAT(world.out, HasSubstr("2 tensors, 10 elements, 0 objects, 10 bytes in 1 file\n"));
  EXPECT_THAT(world.out, HasSubstr("\nlayer.bias\tuint8\t[2]\t2 bytes\t\tm.safetensors\n"));
  EXPECT_THAT(world.out, HasSubstr("\nlayer.weight\tuint8\t[2, 4]\t8 bytes\t\tm.safetensors\n"));
  EXPECT_EQ(world.err, "");
}

TEST_F(Verbs, InspectAlignsColumnsOnATerminal) {
  world.out_is_terminal = true;
  world.run({"inspect", "/m.safetensors"});
  EXPECT_THAT(world.out, HasSubstr("\nname          dtype  shape      size  file\n"
                                   "layer.bias    uint8  [2]     2 bytes  m.safetensors\n"));
}

TEST_F(Verbs, InspectSaysWhereTensorsAreCutAndHowMany) {
  world.run({"split", "/m.safetensors", "-o", "/two", "--ranks", "2"});
  world.run({"inspect", "/two"});
  EXPECT_THAT(world.out, HasSubstr("\n       2 S(0) over 2 ranks\n"));
  EXPECT_THAT(world.out,
              HasSubstr("\nlayer.weight\tuint8\t[2, 4]\t8 bytes\tS(0) over 2 ranks\t__0_0.distcp and 1 more\n"));
}

TEST_F(Verbs, InspectVerboseListsChunks) {
  world.run({"inspect", "/m.safetensors", "-v"});
  const std::string begin = std::to_string(small_model().size() - 8), end = std::to_string(small_model().size());
  EXPECT_THAT(world.out, HasSubstr("\n\t[0:2, 0:4]\tno rank\tm.safetensors\tbytes " + begin + " to " + end + "\n"));
}

TEST_F(Verbs, InspectJsonHasTheWordsOfTheCheckpoint) {
  world.run(
      {"split", "/m.safetensors", "-o", "/four", "--to", "torch-ranks", "--mesh", "dp=2,tp=2", "--place", "**=R,S(0)"});
  EXPECT_EQ(world.run({"inspect", "/four", "--json"}), 0);
  EXPECT_THAT(world.out, HasSubstr("\"meshes\": [\n  {\"axes\": [{\"name\": \"dp\", \"size\": 2}, "
                                   "{\"name\": \"tp\", \"size\": 2}], \"ranks\": [0, 1, 2, 3]}]"));
  EXPECT_THAT(world.out, HasSubstr("\"placements\": [\"R\", \"S(0)\"], \"mesh\": 0"));
}

TEST_F(Verbs, InspectJsonSaysWhereBytesLie) {
  EXPECT_EQ(world.run({"inspect", "/m.safetensors", "--json"}), 0);
  const std::string data_begin = std::to_string(small_model().size() - 10);
  EXPECT_THAT(world.out, HasSubstr("{\"name\": \"layer.bias\", \"dtype\": \"uint8\", \"shape\": [2], \"bytes\": 2, "
                                   "\"placements\": null, \"alias_of\": null, \"chunks\": [{\"offsets\": [0], "
                                   "\"sizes\": [2], \"rank\": null, \"file\": \"m.safetensors\", \"byte_offset\": " +
                                   data_begin + ", \"byte_length\": 2, \"strides\": [1]}]}"));
}

TEST_F(Verbs, InspectShowsTheSelectionUnderItsNewNames) {
  world.run({"inspect", "/m.safetensors", "--include", "*.bias", "--strip-prefix", "layer."});
  EXPECT_THAT(world.out, HasSubstr("\nbias\tuint8"));
  EXPECT_THAT(world.out, Not(HasSubstr("weight")));
}

TEST_F(Verbs, InspectSuggestsTheNameThatWasMeant) {
  EXPECT_EQ(world.run({"inspect", "/m.safetensors", "--include", "layer.wieght"}), 2);
  EXPECT_THAT(world.err, HasSubstr("hint: did you mean 'layer.weight'?"));
}

TEST_F(Verbs, NamesCannotSteerTheTerminal) {
  world.put("/evil.safetensors",
            safetensors(R"({"a\u001b[31m":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})", "x"));
  world.run({"inspect", "/evil.safetensors"});
  EXPECT_THAT(world.out, HasSubstr("a\\x1b[31m\t"));
}

// ---- Failures.

TEST_F(Verbs, AMissingSourceIsExit3) {
  EXPECT_EQ(world.run({"inspect", "/absent"}), 3);
  EXPECT_THAT(world.err, StartsWith("shardctl: error: /absent"));
}

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

TEST_F(Verbs, QuietHidesNoError) {
  EXPECT_EQ(world.run({"-q", "inspect", "/absent"}), 3);
  EXPECT_THAT(world.err, HasSubstr("error"));
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

// ---- Writing verbs.

TEST_F(Verbs, ConvertThereAndBackKeepsTheContent) {
  EXPECT_EQ(world.run({"convert", "/m.safetensors", "-o", "/m.pt"}), 0);
  EXPECT_EQ(world.run({"convert", "/m.pt", "-o", "/back.safetensors"}), 0);
  EXPECT_EQ(world.run({"diff", "/m.safetensors", "/back.safetensors"}), 0);
}

TEST_F(Verbs, SplitAndGatherKeepTheContent) {
  EXPECT_EQ(world.run({"split", "/m.safetensors", "-o", "/two", "--ranks", "2"}), 0);
  EXPECT_EQ(world.run({"reshard", "/two", "-o", "/three", "--ranks", "3", "--dim", "1"}), 0);
  EXPECT_EQ(world.run({"gather", "/three", "-o", "/whole.safetensors"}), 0);
  EXPECT_EQ(world.run({"diff", "/m.safetensors", "/whole.safetensors"}), 0);
}

TEST_F(Verbs, TheResultIsADocument) {
  EXPECT_EQ(world.run({"gather", "/m.safetensors", "-o", "/out.safetensors", "--json"}), 0);
  EXPECT_THAT(world.out, StartsWith(R"({"schema": "shardctl.result/1", "verb": "gather", "source": "/m.safetensors", )"
                                    R"("output": "/out.safetensors", "format": "safetensors", "files": [)"));
  EXPECT_THAT(world.out, HasSubstr("\"tensors\": 2, \"objects\": 0, \"bytes_read\": 10, \"bytes_written\": 10"));
}

TEST_F(Verbs, TheSummaryIsOnStderr) {
  world.run({"gather", "/m.safetensors", "-o", "/out.safetensors"});
  EXPECT_EQ(world.out, "");
  EXPECT_THAT(world.err, StartsWith("shardctl: gather: wrote /out.safetensors: 2 tensors, 0 objects"));
}

TEST_F(Verbs, ADryRunWritesNothing) {
  const auto before = world.state->paths();
  EXPECT_EQ(world.run({"split", "/m.safetensors", "-o", "/out", "--ranks", "2", "-n"}), 0);
  EXPECT_EQ(world.state->paths(), before);
  EXPECT_THAT(world.out, HasSubstr("__0_0.distcp"));
}

TEST_F(Verbs, ADryRunIsADocumentWithJson) {
  EXPECT_EQ(world.run({"split", "/m.safetensors", "-o", "/out", "--ranks", "2", "-n", "--json"}), 0);
  EXPECT_THAT(world.out, StartsWith(R"({"schema": "shardctl.plan/1")"));
  EXPECT_THAT(world.out, HasSubstr("\"bytes_to_read\": 10, \"bytes_to_write\": 10"));
}

TEST_F(Verbs, AnExistingOutputIsExit5) {
  world.put("/out.safetensors", "mine");
  EXPECT_EQ(world.run({"gather", "/m.safetensors", "-o", "/out.safetensors"}), 5);
  EXPECT_EQ(test::as_text(world.state->content("/out.safetensors")), "mine");
}

TEST_F(Verbs, ForceReplacesIt) {
  world.put("/out.safetensors", "mine");
  EXPECT_EQ(world.run({"gather", "/m.safetensors", "-o", "/out.safetensors", "--force"}), 0);
  EXPECT_EQ(world.run({"diff", "/m.safetensors", "/out.safetensors"}), 0);
}

TEST_F(Verbs, TheSourceIsNeverTheOutput) {
  EXPECT_EQ(world.run({"gather", "/m.safetensors", "-o", "/m.safetensors", "--force"}), 5);
}

TEST_F(Verbs, AStopIsExit130AndLeavesNothing) {
  world.stop.request_stop();
  world.signal = SIGINT;
  EXPECT_EQ(world.run({"gather", "/m.safetensors", "-o", "/out.safetensors"}), 130);
  EXPECT_EQ(world.fs->status("/out.safetensors").kind, FileKind::kAbsent);
}

TEST_F(Verbs, ASigtermIsExit143) {
  world.stop.request_stop();
  world.signal = SIGTERM;
  EXPECT_EQ(world.run({"gather", "/m.safetensors", "-o", "/out.safetensors"}), 143);
}

struct Contradiction {
  std::vector<std::string> arguments;
  int code;
  std::string words;
};

TEST_F(Verbs, ContradictionsAreRefusedBeforeAnythingIsWritten) {
  const std::vector<Contradiction> table{
      {{"convert", "/m.safetensors", "-o", "/out"}, 2, "--to FORMAT"},
      {{"convert", "/m.safetensors", "-o", "/x.pt", "--to", "safetensors"}, 2, "contradicts the suffix"},
      {{"convert", "/m.safetensors", "-o", "/x", "--to", "megatron"}, 8, "megatron"},
      {{"convert", "/m.safetensors", "-o", "/x", "--to", "safetensor"}, 2, "did you mean safetensors?"},
      {{"split", "/m.safetensors", "-o", "/x.safetensors", "--ranks", "2"}, 2, "is a single file"},
      {{"split", "/m.safetensors", "-o", "/x", "--ranks", "2", "--to", "torch"},
       2,
       "a format that stores shards (dcp, dcp-hf, torch-ranks"},
      {{"reshard", "/m.safetensors", "-o", "/x"}, 2, "reshard needs a layout"},
      {{"reshard", "/m.safetensors", "-o", "/x", "--ranks", "2"},
       2,
       "a format that stores shards (dcp, dcp-hf, torch-ranks"},
      {{"split", "/m.safetensors", "-o", "/x", "--ranks", "0"}, 2, "0"},
      {{"split", "/m.safetensors", "-o", "/x", "--shards", "0"}, 2, "at least 1"},
      {{"split", "/m.safetensors", "-o", "/x", "--mesh", "a=2,b=2", "--place", "**=R"}, 2, "the mesh has 2 axes"},
      {{"split", "/m.safetensors", "-o", "/x", "--mesh", "a=2", "--place", "x=S(0)"}, 2, "x=S(0)"},
      {{"split", "/m.safetensors", "-o", "/x", "--mesh", "a=2", "--place", "**=S(0"}, 2, "S(0"},
      {{"split", "/m.safetensors", "-o", "/x", "--max-shard-size", "5 apples"}, 2, "is not a size"},
      {{"gather", "/m.safetensors", "-o", "/x", "--max-memory", "nothing"}, 2, "--max-memory 'nothing'"},
      {{"gather", "/m.safetensors", "-o", "/x", "--cast", "layer.weight=int13"}, 2, "int13"},
  };
  const auto before = world.state->paths();
  for (const Contradiction& each : table) {
    EXPECT_EQ(world.run(each.arguments), each.code) << ::testing::PrintToString(each.arguments) << world.err;
    EXPECT_THAT(world.err, HasSubstr(each.words)) << ::testing::PrintToString(each.arguments);
  }
  EXPECT_EQ(world.state->paths(), before);
}

TEST_F(Verbs, FoldersOfWholeTensorsHaveTheirOwnNames) {
  world.run({"split", "/m.safetensors", "-o", "/one"});
  EXPECT_EQ(world.fs->list("/one"), std::vector<std::string>{"model.safetensors"});
  world.run({"split", "/m.safetensors", "-o", "/two", "--shards", "2"});
  EXPECT_EQ(world.fs->list("/two"),
            (std::vector<std::string>{"model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors",
                                      "model.safetensors.index.json"}));
}

TEST_F(Verbs, CastsThatOverflowAreCounted) {
  const std::string large("\x00\x50\xC3\x47\x00\x00\x80\x3F", 8);  // 100000 and 1 as float32.
  world.put("/f.safetensors", safetensors(R"({"w":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})", large));
  EXPECT_EQ(world.run({"convert", "/f.safetensors", "-o", "/h.safetensors", "--cast", "w=float16", "--json"}), 0);
  EXPECT_THAT(world.out, HasSubstr("\"cast_overflows\": 1"));
  EXPECT_THAT(world.err, HasSubstr("warning: 1 value is too large"));
}

// ---- diff.

TEST_F(Verbs, DiffOfEqualsPrintsNothing) {
  EXPECT_EQ(world.run({"diff", "/m.safetensors", "/m.safetensors"}), 0);
  EXPECT_EQ(world.out, "");
  EXPECT_EQ(world.err, "shardctl: equal: 2 tensors compared\n");
}

TEST_F(Verbs, DiffSaysWhichValuesDiffer) {
  world.put("/n.safetensors", small_model("abABCDEFGK"));
  EXPECT_EQ(world.run({"diff", "/m.safetensors", "/n.safetensors", "--json"}), 1);
  EXPECT_THAT(world.out,
              HasSubstr(R"("values": [{"name": "layer.weight", "elements": 8, "differing": 1, "max_abs": 3.0)"));
  EXPECT_THAT(
      world.out,
      HasSubstr(
          R"("max_ulp": null, "first_index": [1, 3], "dtype": "uint8", "shape": [2, 4], "abs_histogram": [[0, 1]])"));
}

TEST_F(Verbs, DiffTakesTolerances) {
  world.put("/n.safetensors", small_model("abABCDEFGK"));
  EXPECT_EQ(world.run({"diff", "/m.safetensors", "/n.safetensors", "--atol", "3"}), 0);
}

TEST_F(Verbs, DiffListsNamesShapesAndDtypes) {
  world.put("/n.safetensors", safetensors(R"({"layer.weight":{"dtype":"I8","shape":[8],"data_offsets":[0,8]},)"
                                          R"("more":{"dtype":"U8","shape":[1],"data_offsets":[8,9]}})",
                                          "ABCDEFGHI"));
  EXPECT_EQ(world.run({"diff", "/m.safetensors", "/n.safetensors"}), 1);
  EXPECT_EQ(world.out,
            "only in A layer.bias\nonly in B more\ndtype layer.weight: uint8 in A, int8 in B\n"
            "shape layer.weight: [2, 4] in A, [8] in B\n");
}

TEST_F(Verbs, DiffStripsAPrefixThatOneSideHas) {
  world.run({"convert", "/m.safetensors", "-o", "/p.safetensors", "--add-prefix", "model."});
  EXPECT_EQ(world.run({"diff", "/m.safetensors", "/p.safetensors"}), 1);
  EXPECT_EQ(world.run({"diff", "/m.safetensors", "/p.safetensors", "--strip-prefix", "model."}), 0);
}

TEST_F(Verbs, DiffListsNoMoreThanToldTo) {
  world.put("/n.safetensors", small_model("xyxxxxxxxx"));
  EXPECT_EQ(world.run({"diff", "/m.safetensors", "/n.safetensors", "--max-diffs", "1"}), 1);
  EXPECT_THAT(world.out, StartsWith("values layer.bias"));
  EXPECT_THAT(world.out, HasSubstr("... 1 more: values"));
}

// ---- cat.

TEST_F(Verbs, CatPrintsARowALine) {
  EXPECT_EQ(world.run({"cat", "/m.safetensors", "layer.weight"}), 0);
  EXPECT_EQ(world.out, "65 66 67 68\n69 70 71 72\n");
  EXPECT_EQ(world.err, "");
}

TEST_F(Verbs, CatPrintsAVectorAnElementALine) {
  world.run({"cat", "/m.safetensors", "layer.bias"});
  EXPECT_EQ(world.out, "97\n98\n");
}

TEST_F(Verbs, CatAlignsColumnsOnATerminal) {
  world.out_is_terminal = true;
  world.put("/w.safetensors",
            safetensors(R"({"w":{"dtype":"U8","shape":[2,2],"data_offsets":[0,4]}})", "\x01\x02@\x03"));
  world.run({"cat", "/w.safetensors", "w"});
  EXPECT_EQ(world.out, " 1  2\n64  3\n");
}

TEST_F(Verbs, CatTakesSlices) {
  world.run({"cat", "/m.safetensors", "layer.weight[1,1:3]", "--format", "raw"});
  EXPECT_EQ(world.out, "FG");
}

TEST_F(Verbs, CatReadsOnlyTheBytesOfTheSlice) {
  EXPECT_EQ(world.run({"cat", "/m.safetensors", "layer.weight[:,1:2]", "-vv"}), 0);
  EXPECT_THAT(world.err, HasSubstr("read 2 bytes of 'layer.weight' in 2 calls"));
}

TEST_F(Verbs, CatReadsAcrossPieces) {
  world.run({"split", "/m.safetensors", "-o", "/two", "--ranks", "2", "--dim", "1"});
  world.run({"cat", "/two", "layer.weight[:,1:3]", "--format", "raw"});
  EXPECT_EQ(world.out, "BCFG");
}

TEST_F(Verbs, CatPrintsANumpyFile) {
  world.run({"cat", "/m.safetensors", "layer.bias", "--format", "npy"});
  EXPECT_EQ(world.out.size(), 130U);
  EXPECT_EQ(world.out.substr(0, 10), std::string("\x93NUMPY\x01\0\x76\0", 10));
  EXPECT_THAT(world.out, HasSubstr("{'descr': '|u1', 'fortran_order': False, 'shape': (2,), }"));
  EXPECT_EQ(world.out.substr(127), "\nab");
}

TEST_F(Verbs, CatPrintsADocument) {
  world.run({"cat", "/m.safetensors", "layer.weight[1]", "--json"});
  EXPECT_EQ(world.out,
            R"({"schema": "shardctl.cat/1", "name": "layer.weight", "type": "torch.Tensor", "dtype": "uint8", )"
            "\"shape\": [4], \"values\": [69, 70, 71, 72]}\n");
}

TEST_F(Verbs, CatCasts) {
  world.run({"cat", "/m.safetensors", "layer.bias", "--cast", "layer.bias=float32"});
  EXPECT_EQ(world.out, "97.0\n98.0\n");
}

TEST_F(Verbs, CatTakesNewNames) {
  world.run({"cat", "/m.safetensors", "bias[0]", "--strip-prefix", "layer."});
  EXPECT_EQ(world.out, "97\n");
}

TEST_F(Verbs, CatKeepsRawBytesFromATerminal) {
  world.out_is_terminal = true;
  EXPECT_EQ(world.run({"cat", "/m.safetensors", "layer.bias", "--format", "raw"}), 2);
  EXPECT_EQ(world.out, "");
  EXPECT_THAT(world.err, HasSubstr("hint: redirect it to a file"));
}

TEST_F(Verbs, CatSuggestsTheNameThatWasMeant) {
  EXPECT_EQ(world.run({"cat", "/m.safetensors", "layer.wieght[0:1]"}), 3);
  EXPECT_THAT(world.err, HasSubstr("hint: did you mean 'layer.weight'?"));
}

TEST_F(Verbs, CatSaysWhereNamesBegin) {
  EXPECT_EQ(world.run({"cat", "/m.safetensors", "layer"}), 3);
  EXPECT_THAT(world.err, HasSubstr("hint: give a whole name, such as 'layer.bias'"));
}

TEST_F(Verbs, CatPrefersANameWithBracketsToASlice) {
  world.put("/b.safetensors", safetensors(R"({"w":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},)"
                                          R"("w[0]":{"dtype":"U8","shape":[2],"data_offsets":[2,4]}})",
                                          "abcd"));
  world.run({"cat", "/b.safetensors", "w[0]", "--format", "raw"});
  EXPECT_EQ(world.out, "cd");
  world.run({"cat", "/b.safetensors", "w[0][1]", "--format", "raw"});
  EXPECT_EQ(world.out, "d");
}

TEST_F(Verbs, CatNamesTheCastForWhatNumpyLacks) {
  world.put("/h.safetensors", safetensors(R"({"w":{"dtype":"BF16","shape":[1],"data_offsets":[0,2]}})", "\x80?"));
  EXPECT_EQ(world.run({"cat", "/h.safetensors", "w", "--format", "npy"}), 8);
  EXPECT_THAT(world.err, HasSubstr("hint: shardctl cat /h.safetensors w --format npy --cast '**=float32'"));
}

TEST_F(Verbs, CatRefusesTextOfPackedNumbers) {
  world.put("/f.safetensors", safetensors(R"({"w":{"dtype":"F4","shape":[2],"data_offsets":[0,1]}})", "a"));
  EXPECT_EQ(world.run({"cat", "/f.safetensors", "w"}), 8);
  EXPECT_EQ(world.run({"cat", "/f.safetensors", "w", "--format", "raw"}), 0);
  EXPECT_EQ(world.out, "a");
}

// ---- Ranks of the source and of the target.

TEST_F(Verbs, AsSaysWhatFilesOfRanksHold) {
  const std::vector<std::string> split{"split", "/m.safetensors", "--to", "torch-ranks", "--ranks", "2"};
  for (const char* kind : {"sharded_tensor", "dtensor", "plain"}) {
    std::vector<std::string> arguments = split;
    arguments.insert(arguments.end(), {"-o", std::string("/") + kind, "--as", kind});
    EXPECT_EQ(world.run(arguments), 0) << world.err;
    EXPECT_EQ(world.run({"diff", "/m.safetensors", std::string("/") + kind}), 0) << world.err;
  }
  EXPECT_EQ(world.fs->list("/plain"),
            (std::vector<std::string>{"layout.json", "rank-00000-of-00002.pt", "rank-00001-of-00002.pt"}));
}

TEST_F(Verbs, AsIsForFilesOfRanksOnly) {
  EXPECT_EQ(world.run({"split", "/m.safetensors", "-o", "/x", "--ranks", "2", "--as", "dtensor"}), 2);
  EXPECT_THAT(world.err, HasSubstr("hint: drop --as, or add --to torch-ranks"));
}

TEST_F(Verbs, AMeshMeansDTensors) {
  world.run({"split", "/m.safetensors", "-o", "/d", "--to", "torch-ranks", "--mesh", "tp=2", "--place", "**=S(0)"});
  EXPECT_EQ(world.run({"inspect", "/d", "--json"}), 0);
  EXPECT_THAT(world.out, HasSubstr("\"axes\": [{\"name\": \"tp\", \"size\": 2}]"));  // ShardedTensors have no names.
}

TEST_F(Verbs, TheKindOfTheSourceIsKept) {
  world.run({"split", "/m.safetensors", "-o", "/d", "--to", "torch-ranks", "--mesh", "tp=2", "--place", "**=S(0)"});
  EXPECT_EQ(world.run({"reshard", "/d", "-o", "/three", "--ranks", "3"}), 0) << world.err;
  EXPECT_EQ(world.run({"inspect", "/three", "--json", "--include", "layer.weight"}), 0);
  EXPECT_THAT(world.out, HasSubstr("\"placements\": [\"S(0)\"]"));
  EXPECT_THAT(test::as_text(world.state->content("/three/rank-00000-of-00003.pt")), HasSubstr("_dtensor_spec"));
}

TEST_F(Verbs, PlainSlicesNeedTheirLayout) {
  world.run({"split", "/m.safetensors", "-o", "/p", "--to", "torch-ranks", "--ranks", "2", "--as", "plain"});
  EXPECT_EQ(world.run({"digest", "/p/rank-00000-of-00002.pt", "/p/rank-00001-of-00002.pt", "--from", "torch-ranks",
                       "--layout", "/p/layout.json"}),
            0)
      << world.err;
  const std::string digests = world.out;
  world.run({"digest", "/m.safetensors"});
  EXPECT_EQ(world.out, digests);
}

TEST_F(Verbs, MoreRanksThanExpectedAreRefused) {
  world.run({"split", "/m.safetensors", "-o", "/two", "--ranks", "2"});
  EXPECT_EQ(world.run({"inspect", "/two", "--ranks-expected", "2"}), 0);
  EXPECT_EQ(world.run({"inspect", "/two", "--ranks-expected", "1"}), 4);
  EXPECT_THAT(world.err, HasSubstr("2 ranks, not of 1"));
}

TEST_F(Verbs, WhatNoRanksWroteCannotBeCheckedForThem) {
  EXPECT_EQ(world.run({"inspect", "/m.safetensors", "--ranks-expected", "2"}), 2);
  EXPECT_THAT(world.err, HasSubstr("hint: drop --ranks-expected"));
}

// ---- Leftovers.

TEST_F(Verbs, TextsOfTheMetadataThatHaveNoPlaceAreTold) {
  world.put("/n.safetensors", safetensors(R"({"__metadata__":{"format":"pt","licence":"MIT"},)"
                                          R"("w":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})",
                                          "x"));
  EXPECT_EQ(world.run({"convert", "/n.safetensors", "-o", "/n.pt"}), 0);
  EXPECT_THAT(world.err, HasSubstr("warning: torch cannot store the source's __metadata__; dropped: 'licence'"));
  EXPECT_EQ(world.run({"convert", "/n.safetensors", "-o", "/again.safetensors"}), 0);
  EXPECT_THAT(world.err, Not(HasSubstr("licence")));
}

TEST_F(Verbs, OtherFilesOfAFolderAreTold) {
  world.run({"split", "/m.safetensors", "-o", "/two", "--ranks", "2"});
  world.put("/two/config.json", "{}");
  EXPECT_EQ(world.run({"gather", "/two", "-o", "/g.safetensors", "--json"}), 0);
  EXPECT_THAT(world.out, HasSubstr("\"warnings\": [\"ignored other files in the folder: 'config.json'\"]"));
}

/// 'a' is a letter in other warnings, which concern other files.
TEST_F(Verbs, AnotherFileWhoseNameIsPartOfAWarningIsToldToo) {
  world.run({"split", "/m.safetensors", "-o", "/d", "--ranks", "2"});
  world.put("/d/__0.metadata", "left aside");
  world.put("/d/a", "mine");
  EXPECT_EQ(world.run({"gather", "/d", "-o", "/g.safetensors", "--json"}), 0) << world.err;
  EXPECT_THAT(world.out, HasSubstr("ignored __0.metadata and other per-rank metadata because .metadata exists"));
  EXPECT_THAT(world.out, HasSubstr("ignored other files in the folder: 'a'"));
}

// ---- digest.

TEST_F(Verbs, DigestIsThatOfTheBytes) {
  EXPECT_EQ(world.run({"digest", "/m.safetensors", "--algorithm", "sha256"}), 0);
  EXPECT_EQ(world.out,  // sha256sum of "ab", of "ABCDEFGH", and of the two lines of the checkpoint's digest.
            "fb8e20fc2e4c3f248c60c39bd652f3c1347298bb977b8b4d5903b85055620603  layer.bias\n"
            "9ac2197d9258257b1ae8463e4214e4cd0a578bc1517f2415928b91be4283fc48  layer.weight\n"
            "checkpoint 2b9fe969fa4421a816471fa4e52a99aec6cffbddfa84c4317c2d9dc740b95bb2\n");
}

TEST_F(Verbs, DigestIsTheSameInEveryLayout) {
  world.run({"split", "/m.safetensors", "-o", "/two", "--ranks", "2"});
  world.run({"digest", "/m.safetensors"});
  const std::string whole = world.out;
  world.run({"digest", "/two"});
  EXPECT_EQ(world.out, whole);
}

// ---- Promises of the command line about mistakes.

TEST_F(Verbs, ASuffixOfAnotherFormatContradictsTo) {
  EXPECT_EQ(world.run({"convert", "/m.safetensors", "-o", "/x.h5", "--to", "safetensors"}), 2);
}

TEST_F(Verbs, ARuleWithoutATensorIsCitedAsItWasGiven) {
  EXPECT_EQ(world.run({"split", "/m.safetensors", "-o", "/out", "--mesh", "a=2", "--place", "zz=S(0)"}), 2);
  EXPECT_EQ(world.err, "shardctl: error: '--place zz=S(0)' matches no tensor\n");
}

// ---- The rest.

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

TEST_F(Verbs, ProgressAsJsonEndsWithTheTotal) {
  world.run({"gather", "/m.safetensors", "-o", "/out.safetensors", "--progress", "json"});
  EXPECT_THAT(world.err,
              HasSubstr(R"({"schema": "shardctl.progress/1", "what": "gather", "bytes_done": 10, "bytes_total": 10)"));
}

TEST_F(Verbs, ProgressAsJsonHasRateAndTimeLeft) {
  world.run({"gather", "/m.safetensors", "-o", "/out.safetensors", "--progress", "json"});
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
  EXPECT_THAT(world.err, HasSubstr("opened /m.safetensors as safetensors: 2 tensors"));
}

}  // namespace
}  // namespace shard::app
