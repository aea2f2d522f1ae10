// The verbs inspect, diff, cat and digest in memory.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/apps/world.h"

namespace shard::app {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

TEST_F(Verbs, MistakesAreAnsweredWithTheRightLine) {
  expect_refusals(
      {{{"inspect", "/absent"}, 3, "shardctl: error: /absent"},
       {{"-q", "inspect", "/absent"}, 3, "shardctl: error: /absent"},
       {{"inspect", "/m.safetensors", "--include", "layer.wieght"}, 2, "hint: did you mean 'layer.weight'?"},
       {{"inspect", "/m.safetensors", "--include", "layer.{weight,bias}"}, 2, "hint: did you mean 'layer.*'?"},
       {{"inspect", "/m.safetensors", "--include", "*.bias,*.weight"}, 2, "--include '*.bias' --include '*.weight'"},
       {{"inspect", "/m.safetensors", "--exclude", "a,*.bias"}, 2, "separately: --exclude a --exclude '*.bias'"},
       {{"inspect", "/m.safetensors", "--exclude", "layer.{weight,bias}"}, 2, "hint: did you mean 'layer.*'?"},
       {{"inspect", "/m.safetensors", "--exclude", "{a,b},c"}, 2, "separately: --exclude '{a,b}' --exclude c"},
       {{"inspect", "/m.safetensors", "--ranks-expected", "2"}, 2, "hint: drop --ranks-expected"},
       {{"cat", "/m.safetensors", "layer.wieght[0:1]"}, 3, "hint: did you mean 'layer.weight'?"},
       {{"cat", "/m.safetensors", "layer"}, 3, "hint: give a whole name, such as 'layer.bias'"}});
}

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

TEST_F(Verbs, NamesCannotSteerTheTerminal) {
  world.put("/evil.safetensors",
            safetensors(R"({"a\u001b[31m":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})", "x"));
  world.run({"inspect", "/evil.safetensors"});
  EXPECT_THAT(world.out, HasSubstr("a\\x1b[31m\t"));
}

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

TEST_F(Verbs, CatPrintsElements) {
  const std::vector<std::pair<std::vector<std::string>, std::string>> table{
      {{"layer.weight"}, "65 66 67 68\n69 70 71 72\n"},
      {{"layer.bias"}, "97\n98\n"},
      {{"layer.weight[1,1:3]", "--format", "raw"}, "FG"},
      {{"layer.bias", "--cast", "layer.bias=float32"}, "97.0\n98.0\n"},
      {{"bias[0]", "--strip-prefix", "layer."}, "97\n"},
      {{"layer.weight[1]", "--json"},
       R"({"schema": "shardctl.cat/1", "name": "layer.weight", "type": "torch.Tensor", "dtype": "uint8", )"
       "\"shape\": [4], \"values\": [69, 70, 71, 72]}\n"}};
  for (const auto& [words, out] : table) {
    std::vector<std::string> arguments{"cat", "/m.safetensors"};
    arguments.insert(arguments.end(), words.begin(), words.end());
    EXPECT_EQ(world.run(arguments), 0) << world.err;
    EXPECT_EQ(world.out, out);
    EXPECT_EQ(world.err, "");
  }
}

TEST_F(Verbs, CatAlignsColumnsOnATerminal) {
  world.out_is_terminal = true;
  world.put("/w.safetensors",
            safetensors(R"({"w":{"dtype":"U8","shape":[2,2],"data_offsets":[0,4]}})", "\x01\x02@\x03"));
  world.run({"cat", "/w.safetensors", "w"});
  EXPECT_EQ(world.out, " 1  2\n64  3\n");
}

TEST_F(Verbs, CatReadsOnlyTheBytesOfTheSlice) {
  EXPECT_EQ(world.run({"cat", "/m.safetensors", "layer.weight[:,1:2]", "-vv"}), 0);
  EXPECT_THAT(world.err, HasSubstr("read 2 bytes of 'layer.weight' in 2 calls"));
}

TEST_F(Verbs, CatReadsElementsOnceForADocumentIfTheyFitInMemory) {
  EXPECT_EQ(world.run({"cat", "/m.safetensors", "layer.weight", "--json", "-vv"}), 0);
  EXPECT_THAT(world.err, HasSubstr("read 8 bytes of 'layer.weight' in 1 calls"));
  const std::string document = world.out;
  EXPECT_EQ(world.run({"cat", "/m.safetensors", "layer.weight", "--json", "-vv", "--max-memory", "31"}), 0);
  EXPECT_THAT(world.err, HasSubstr("read 16 bytes of 'layer.weight' in 2 calls"));
  EXPECT_EQ(world.out, document);
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

TEST_F(Verbs, CatKeepsRawBytesFromATerminal) {
  world.out_is_terminal = true;
  EXPECT_EQ(world.run({"cat", "/m.safetensors", "layer.bias", "--format", "raw"}), 2);
  EXPECT_EQ(world.out, "");
  EXPECT_THAT(world.err, HasSubstr("hint: redirect it to a file"));
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
  EXPECT_THAT(world.err, HasSubstr("hint: shardctl cat /h.safetensors w --format npy --cast w=float32"));
  EXPECT_EQ(world.run({"cat", "/m.safetensors", "layer.bias", "--cast", "layer.bias=bfloat16", "--format", "npy"}), 8);
  EXPECT_THAT(world.err,
              HasSubstr("hint: shardctl cat /m.safetensors layer.bias --format npy --cast layer.bias=float32"));
}

TEST_F(Verbs, CatRefusesTextOfPackedNumbers) {
  world.put("/f.safetensors", safetensors(R"({"w":{"dtype":"F4","shape":[2],"data_offsets":[0,1]}})", "a"));
  EXPECT_EQ(world.run({"cat", "/f.safetensors", "w"}), 8);
  EXPECT_EQ(world.run({"cat", "/f.safetensors", "w", "--format", "raw"}), 0);
  EXPECT_EQ(world.out, "a");
}

TEST_F(Verbs, OnlyASelectedTensorMustBeWhole) {
  world.run({"split", "/m.safetensors", "-o", "/gap", "--to", "dcp-hf", "--ranks", "2"});
  const std::string path = "/gap/shard-00002-model-00001-of-00001.safetensors";
  std::string shard = test::as_text(world.state->content(path));
  const std::string offsets = R"(layer.bias\": {\"saved_offsets\": [)";
  ASSERT_NE(shard.find(offsets + "1]"), std::string::npos);
  shard.at(shard.find(offsets) + offsets.size()) = '0';
  world.put(path, shard);
  const std::string message = "no chunk covers element [1] of [2]";
  expect_refusals({{{"inspect", "/gap"}, 4, message},
                   {{"digest", "/gap", "--include", "layer.bias"}, 4, message},
                   {{"gather", "/gap", "-o", "/w.pt", "--exclude", "layer.weight"}, 4, message},
                   {{"cat", "/gap", "layer.bias[0:1]"}, 4, message}});
  for (const std::vector<std::string>& words :
       std::vector<std::vector<std::string>>{{"inspect", "/gap", "--exclude", "layer.bias"},
                                             {"digest", "/gap", "--include", "layer.weight"},
                                             {"gather", "/gap", "-o", "/w.safetensors", "--exclude", "layer.bias"},
                                             {"diff", "/gap", "/w.safetensors", "--exclude", "layer.bias"},
                                             {"cat", "/gap", "layer.weight[1,:]", "--format", "raw"}}) {
    EXPECT_EQ(world.run(words), 0) << ::testing::PrintToString(words) << world.err;
  }
  EXPECT_EQ(world.out, "EFGH");
}

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

}  // namespace
}  // namespace shard::app
