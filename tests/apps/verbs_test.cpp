#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>

#include "tests/apps/world.h"

namespace shard::app {
namespace {

using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

struct Verbs : testing::Test {
  Verbs() { world.put("/m.safetensors", small_model()); }
  World world;
};

// ---- inspect.

TEST_F(Verbs, InspectPrintsALineATensor) {
  EXPECT_EQ(world.run({"inspect", "/m.safetensors"}), 0);
  EXPECT_THAT(world.out, StartsWith("/m.safetensors: safetensors"));
  EXPECT_THAT(world.out, HasSubstr("\nlayer.bias\tuint8\t[2]\t2\tm.safetensors\t\n"));
  EXPECT_THAT(world.out, HasSubstr("\nlayer.weight\tuint8\t[2, 4]\t8\tm.safetensors\t\n"));
  EXPECT_EQ(world.err, "");
}

TEST_F(Verbs, InspectAlignsColumnsOnATerminal) {
  world.out_is_terminal = true;
  world.run({"inspect", "/m.safetensors"});
  EXPECT_THAT(world.out, HasSubstr("\nlayer.bias    uint8  [2]     2  m.safetensors\n"));
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
      {{"convert", "/m.safetensors", "-o", "/x", "--to", "hdf5"}, 8, "hdf5"},
      {{"convert", "/m.safetensors", "-o", "/x.h5"}, 8, "hdf5"},
      {{"convert", "/m.safetensors", "-o", "/x", "--to", "safetensor"}, 2, "did you mean safetensors?"},
      {{"split", "/m.safetensors", "-o", "/x.safetensors", "--ranks", "2"}, 2, "is one file"},
      {{"split", "/m.safetensors", "-o", "/x", "--ranks", "2", "--to", "torch"}, 2, "formats that hold pieces: dcp"},
      {{"reshard", "/m.safetensors", "-o", "/x"}, 2, "reshard needs a layout"},
      {{"reshard", "/m.safetensors", "-o", "/x", "--ranks", "2"}, 2, "formats that hold pieces: dcp"},
      {{"split", "/m.safetensors", "-o", "/x", "--mesh", "a=2,b=2", "--place", "**=R"}, 2, "the mesh has 2 axes"},
      {{"split", "/m.safetensors", "-o", "/x", "--mesh", "a=2", "--place", "x=S(0)"}, 2, "x=S(0)"},
      {{"split", "/m.safetensors", "-o", "/x", "--mesh", "a=2", "--place", "**=S(0"}, 2, "S(0"},
      {{"split", "/m.safetensors", "-o", "/x", "--max-shard-size", "5 apples"}, 2, "is no size"},
      {{"gather", "/m.safetensors", "-o", "/x", "--max-memory", "nothing"}, 2, "--max-memory 'nothing'"},
      {{"gather", "/m.safetensors", "-o", "/x", "--cast", "layer.weight=int13"}, 2, "int13"},
  };
  const auto before = world.state->paths();
  for (const Contradiction& each : table) {
    EXPECT_EQ(world.run(each.arguments), each.code) << testing::PrintToString(each.arguments) << world.err;
    EXPECT_THAT(world.err, HasSubstr(each.words)) << testing::PrintToString(each.arguments);
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
  EXPECT_THAT(world.err, HasSubstr("warning: --cast: 1 values are too large"));
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
  EXPECT_THAT(world.out, HasSubstr(R"("max_ulp": null, "first_index": [1, 3]}])"));
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
            "only in A layer.bias\nonly in B more\ndtype layer.weight: uint8 and int8\n"
            "shape layer.weight: [2, 4] and [8]\n");
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

// ---- What the command line promises about mistakes.

TEST_F(Verbs, ASuffixOfAnotherFormatContradictsTo) {
  EXPECT_EQ(world.run({"convert", "/m.safetensors", "-o", "/x.h5", "--to", "safetensors"}), 2);
  EXPECT_EQ(world.run({"convert", "/m.safetensors", "-o", "/x.h5"}), 8);
}

TEST_F(Verbs, WhatThisBuildLacksIsRefusedFromTheEnvironmentToo) {
  world.env["SHARDCTL_RESUME"] = "1";
  EXPECT_EQ(world.run({"gather", "/m.safetensors", "-o", "/out"}), 8);
  EXPECT_EQ(world.run({"inspect", "/m.safetensors"}), 0);
  world.env["SHARDCTL_RESUME"] = "0";
  EXPECT_EQ(world.run({"gather", "/m.safetensors", "-o", "/out"}), 0);
}

TEST_F(Verbs, ARuleWithoutATensorIsCitedAsItWasGiven) {
  EXPECT_EQ(world.run({"split", "/m.safetensors", "-o", "/out", "--mesh", "a=2", "--place", "zz=S(0)"}), 2);
  EXPECT_EQ(world.err, "shardctl: error: '--place zz=S(0)' matches no tensor\n");
}

// ---- The rest.

TEST_F(Verbs, VersionIsOneLine) {
  EXPECT_EQ(world.run({"--version"}), 0);
  EXPECT_EQ(world.out, "shardctl 0.1.0\n");
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

TEST_F(Verbs, TheLogSaysWhatIsDone) {
  world.run({"inspect", "/m.safetensors", "-v"});
  EXPECT_THAT(world.err, HasSubstr("opened /m.safetensors as safetensors: 2 tensors"));
}

}  // namespace
}  // namespace shard::app
