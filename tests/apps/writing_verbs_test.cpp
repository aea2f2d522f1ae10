// The writing verbs in memory: their outputs, the ranks of source and target, requests that are refused.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <utility>

#include "tests/apps/world.h"

namespace shard::app {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

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

TEST_F(Verbs, ASignalIsItsExitCodeAndLeavesNothing) {
  world.stop.request_stop();
  for (const auto& [signal, code] : {std::pair(SIGINT, 130), std::pair(SIGTERM, 143), std::pair(SIGHUP, 129)}) {
    world.signal = signal;
    EXPECT_EQ(world.run({"gather", "/m.safetensors", "-o", "/out.safetensors"}), code);
    EXPECT_EQ(world.fs->status("/out.safetensors").kind, FileKind::kAbsent);
  }
}

TEST_F(Verbs, ContradictionsAreRefusedBeforeAnythingIsWritten) {
  const auto before = world.state->paths();
  expect_refusals({
      {{"convert", "/m.safetensors", "-o", "/out"}, 2, "--to FORMAT"},
      {{"repair", "/m.safetensors", "-o", "/x.safetensors", "--like", "/absent"}, 3, "/absent: no such file or folder"},
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
      {{"split", "/m.safetensors", "-o", "/x", "--ranks", "2", "--as", "dtensor"},
       2,
       "hint: drop --as, or add --to torch-ranks"},
      {{"convert", "/m.safetensors", "-o", "/x.h5", "--to", "safetensors"}, 2, "contradicts the suffix"},
  });
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
  EXPECT_THAT(world.err, HasSubstr("warning: 1 value is outside the range of the new dtype"));
}

TEST_F(Verbs, ComputedWeightsThatOverflowAreCounted) {
  const std::string codes("\x7E\x38", 2), scale("\x00\x00\x48\x43", 4);  // 448 and 1 as E4M3, 200 as float32.
  world.put("/q.safetensors", safetensors(R"({"a.weight":{"dtype":"F8_E4M3","shape":[1,2],"data_offsets":[0,2]},)"
                                          R"("a.weight_scale_inv":{"dtype":"F32","shape":[1,1],"data_offsets":[2,6]}})",
                                          codes + scale));
  EXPECT_EQ(world.run({"convert", "/q.safetensors", "-o", "/h.safetensors", "--dequantize=float16", "--json"}), 0);
  EXPECT_THAT(world.out, HasSubstr("\"cast_overflows\": 1"));
  EXPECT_THAT(world.err, HasSubstr("warning: 1 value is outside the range of the new dtype"));
  EXPECT_EQ(world.run({"convert", "/q.safetensors", "-o", "/b.safetensors", "--dequantize", "--json"}), 0);
  EXPECT_THAT(world.out, HasSubstr("\"cast_overflows\": 0"));
}

TEST_F(Verbs, FloatsThatAreNoIntegersAreCounted) {
  const std::string values("\x00\x00\xC0\x7F\x00\x50\xC3\x47", 8);  // NaN and 100000 as float32.
  world.put("/f.safetensors", safetensors(R"({"w":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})", values));
  EXPECT_EQ(world.run({"convert", "/f.safetensors", "-o", "/i.safetensors", "--cast", "w=int16", "--json"}), 0);
  EXPECT_THAT(world.out, HasSubstr("\"cast_overflows\": 2"));
  EXPECT_THAT(world.err, HasSubstr("warning: 2 values are outside the range of the new dtype"));
  EXPECT_THAT(world.err, HasSubstr("1 tensor is converted from float32 to int16, which drops fractions: 'w'"));
}

TEST_F(Verbs, ARuleWithoutATensorIsCitedAsItWasGiven) {
  EXPECT_EQ(world.run({"split", "/m.safetensors", "-o", "/out", "--mesh", "a=2", "--place", "zz=S(0)"}), 2);
  EXPECT_EQ(world.err, "shardctl: error: '--place zz=S(0)' matches no tensor\n");
}

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
  world.put("/two/__2_0.distcp", "");  // A rank without data writes such a file.
  EXPECT_EQ(world.run({"gather", "/two", "-o", "/g.safetensors", "--json"}), 0);
  EXPECT_THAT(world.out, HasSubstr("\"warnings\": [\"other files of the folder are not part of the checkpoint, and are "
                                   "not copied: 'config.json'\"]"));
}

/// 'a' is a letter in other warnings, which concern other files.
TEST_F(Verbs, AnotherFileWhoseNameIsPartOfAWarningIsToldToo) {
  world.run({"split", "/m.safetensors", "-o", "/d", "--ranks", "2"});
  world.put("/d/__0.metadata", "left aside");
  world.put("/d/a", "mine");
  EXPECT_EQ(world.run({"gather", "/d", "-o", "/g.safetensors", "--json"}), 0) << world.err;
  EXPECT_THAT(world.out, HasSubstr("ignored __0.metadata and other per-rank metadata because .metadata exists"));
  EXPECT_THAT(world.out,
              HasSubstr("other files of the folder are not part of the checkpoint, and are not copied: 'a'"));
}

}  // namespace
}  // namespace shard::app
