// Findings of verify: every one, of the right kind, file and severity.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "libshard/core/digest.h"
#include "libshard/core/error.h"
#include "libshard/verify/verify_findings.h"
#include "tests/verify/verify_world.h"

namespace shard::app {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::StartsWith;
using ::testing::UnorderedElementsAre;

class Verify : public ::testing::Test {
 protected:
  VerifyWorld world;

  void SetUp() override { world.put("/m.safetensors", small_model()); }
  void make(std::vector<std::string> arguments) {
    arguments.insert(arguments.end(), {"-q"});
    ASSERT_EQ(world.run(arguments), 0) << world.err;
  }
  /// The place of `text` in a file.
  std::size_t find(const std::string& path, const std::string& text) {
    const std::size_t at = world.content(path).find(text);
    EXPECT_NE(at, std::string::npos);
    return at;
  }
};

TEST(VerifyFindings, ThatAreClearedAreNotCounted) {
  VerifyFindings findings({"/m"});
  for (std::size_t i = 0; i < VerifyFindings::kMost + 3; ++i) findings.report(Error(ErrorCode::kCorruption, "broken"));
  EXPECT_EQ(findings.left_out(), 3U);
  findings.clear();
  EXPECT_EQ(findings.left_out(), 0U);
  EXPECT_THAT(findings.sorted(), IsEmpty());
}

TEST_F(Verify, OneBadFileHidesNoOther) {
  make({"split", "/m.safetensors", "-o", "/d", "--ranks", "4"});
  for (const char* file : {"/d/__0_0.distcp", "/d/__1_0.distcp"}) world.flip(file, world.content(file).size() / 2, 1);
  const auto found = world.verify({"/d"});
  EXPECT_EQ(world.code, 1);
  std::set<std::string> files;
  for (const auto& finding : found.at("findings")) files.insert(finding.at("file").get<std::string>());
  EXPECT_THAT(files, ElementsAre("__0_0.distcp", "__1_0.distcp"));
}

TEST_F(Verify, AFlippedElementNamesItsTensor) {
  make({"convert", "/m.safetensors", "-o", "/s.pt"});
  std::string data(20'000, 'w');
  world.put("/l.safetensors", safetensors(R"({"w":{"dtype":"U8","shape":[20000],"data_offsets":[0,20000]}})", data));
  make({"convert", "/l.safetensors", "-o", "/l.pt"});
  world.flip("/l.pt", find("/l.pt", "wwwwwwww") + 9000, 5);
  const auto found = world.verify({"/l.pt"});
  EXPECT_EQ(world.code, 1);
  ASSERT_EQ(found.at("findings").size(), 1U) << found;
  EXPECT_EQ(found.at("findings")[0].at("kind"), "crc_mismatch");
  EXPECT_EQ(found.at("findings")[0].at("tensor"), "w");
  EXPECT_EQ(found.at("findings")[0].at("file"), "l.pt");
}

TEST_F(Verify, TextHasOneLineAFindingAndAVerdict) {
  make({"convert", "/m.safetensors", "-o", "/s.pt"});
  EXPECT_EQ(world.run({"verify", "/s.pt"}), 0) << world.err;
  EXPECT_THAT(world.out, StartsWith("/s.pt: good. Checked 1 file of "));
  world.flip("/s.pt", find("/s.pt", "ABCDEFGH"), 0);
  EXPECT_EQ(world.run({"verify", "/s.pt"}), 1);
  EXPECT_THAT(world.out, StartsWith("error crc_mismatch s.pt 'layer.weight': "));
  EXPECT_THAT(world.out, HasSubstr("\n/s.pt: damaged, 1 error. Checked "));
}

TEST_F(Verify, SaysThatFilesWithoutChecksumsProveLittle) {
  EXPECT_EQ(world.run({"verify", "/m.safetensors"}), 0) << world.err;
  EXPECT_THAT(world.out, HasSubstr("changed values cannot be detected"));
}

TEST_F(Verify, ListsTheGlobalsOfPickles) {
  make({"convert", "/m.safetensors", "-o", "/s.pt"});
  EXPECT_THAT(world.verify({"/s.pt"}).at("globals").get<std::vector<std::string>>(),
              Contains("torch._utils._rebuild_tensor_v2"));
  make({"convert", "/m.safetensors", "-o", "/d", "--to", "dcp"});
  EXPECT_THAT(world.verify({"/d"}).at("globals").get<std::vector<std::string>>(),
              Contains("torch.distributed.checkpoint.metadata.Metadata"));
}

TEST_F(Verify, ADcpFileOfTheSafetensorsSerializerIsNamedInsteadOfItsZips) {
  make({"convert", "/m.safetensors", "-o", "/d", "--to", "dcp"});
  std::string file = world.content("/d/__0_0.distcp");
  const std::string head("\x58\0\0\0\0\0\0\0{\"", 10);  // The length of a header, and its beginning.
  world.put("/d/__0_0.distcp", file.replace(0, head.size(), head));
  const std::string findings = world.verify({"/d"}).at("findings").dump();
  EXPECT_EQ(world.code, 1);
  EXPECT_THAT(findings, HasSubstr("SerializationFormat.SAFETENSORS"));
  EXPECT_THAT(findings, Not(HasSubstr("the end record is missing")));
}

TEST_F(Verify, ReplicasAreComparedByteForByte) {
  const std::vector<std::string> how{"--to",    "torch-ranks", "--mesh", "dp=2,tp=2",
                                     "--place", "**=R,S(0)",   "--as",   "dtensor"};
  const auto split = [&](const std::string& from, const std::string& to) {
    std::vector<std::string> line{"split", from, "-o", to};
    line.insert(line.end(), how.begin(), how.end());
    make(line);
  };
  split("/m.safetensors", "/r");
  EXPECT_EQ(world.verify({"/r"}).at("findings").size(), 0U) << world.out;
  // A different rank's file of another save, intact in itself.
  world.put("/n.safetensors", small_model("abABCDEFGX"));
  split("/n.safetensors", "/n");
  world.put("/r/rank-00003-of-00004.pt", world.content("/n/rank-00003-of-00004.pt"));
  const auto found = world.verify({"/r"});
  EXPECT_EQ(world.code, 1);
  ASSERT_EQ(found.at("findings").size(), 1U) << found;
  EXPECT_EQ(found.at("findings")[0].at("kind"), "replica_mismatch");
  EXPECT_EQ(found.at("findings")[0].at("tensor"), "layer.weight");
  EXPECT_EQ(found.at("findings")[0].at("file"), "rank-00003-of-00004.pt");
  EXPECT_THAT(found.at("findings")[0].at("detail"), HasSubstr("element 3 of the box"));
}

TEST_F(Verify, IndexAndHeadersAreComparedBothWays) {
  make({"split", "/m.safetensors", "-o", "/h", "--shards", "2"});
  std::string index = world.content("/h/model.safetensors.index.json");
  const std::string good = index;
  index.replace(index.find("layer.bias"), 10, "layer.bogu");
  world.put("/h/model.safetensors.index.json", index);
  const auto found = world.verify({"/h"});
  EXPECT_EQ(world.code, 1);
  std::set<std::string> tensors;
  for (const auto& finding : found.at("findings")) {
    EXPECT_EQ(finding.at("kind"), "index_mismatch");
    tensors.insert(finding.at("tensor").get<std::string>());
  }
  EXPECT_THAT(tensors, ElementsAre("layer.bias", "layer.bogu"));
  world.put("/h/model.safetensors.index.json", good);
  world.put("/h/more.safetensors", small_model());
  EXPECT_THAT(VerifyWorld::kinds(world.verify({"/h"})), ElementsAre("warning extra_file"));
  EXPECT_EQ(world.code, 0);
}

TEST_F(Verify, PointersAreNamedForWhatTheyAre) {
  make({"split", "/m.safetensors", "-o", "/h", "--shards", "2"});
  world.put("/h/model-00001-of-00002.safetensors",
            "version https://git-lfs.github.com/spec/v1\noid sha256:4665a5\nsize 5368709120\n");
  world.put("/h/model-00002-of-00002.safetensors", "/annex/objects/SHA256E-s42--77\n");
  const auto found = world.verify({"/h"});
  EXPECT_EQ(world.code, 4);
  EXPECT_THAT(VerifyWorld::kinds(found), ElementsAre("error missing_file"));
  ASSERT_EQ(found.at("findings").size(), 2U) << found;
  EXPECT_THAT(found.at("findings")[0].at("detail"), StartsWith("this is a Git LFS pointer"));
  EXPECT_THAT(found.at("findings")[1].at("detail"), StartsWith("this is a git-annex pointer"));
  EXPECT_EQ(world.run({"inspect", "/h"}), 4);  // Other verbs name the first one.
  EXPECT_THAT(world.err, HasSubstr("/h/model-00001-of-00002.safetensors: this is a Git LFS pointer"));
  EXPECT_THAT(world.err, HasSubstr("hint: fetch the content with: git lfs pull"));
}

TEST_F(Verify, FilesThatBelongToNothingAreWarnedOf) {
  make({"split", "/m.safetensors", "-o", "/d", "--ranks", "2"});
  world.put("/d/__7_0.distcp", world.content("/d/__0_0.distcp"));
  EXPECT_THAT(VerifyWorld::kinds(world.verify({"/d"})), ElementsAre("warning extra_file"));
  EXPECT_EQ(world.code, 0);
}

TEST_F(Verify, BytesBehindItemsAreFound) {
  make({"split", "/m.safetensors", "-o", "/d", "--ranks", "2"});
  world.put("/d/__0_0.distcp", world.content("/d/__0_0.distcp") + "more");
  EXPECT_THAT(VerifyWorld::kinds(world.verify({"/d"})), ElementsAre("error bad_header"));
  EXPECT_EQ(world.code, 1);
}

TEST_F(Verify, OtherNumbersOfRanksAreFound) {
  make({"split", "/m.safetensors", "-o", "/d", "--ranks", "2"});
  EXPECT_EQ(world.verify({"/d", "--ranks-expected", "2"}).at("ok"), true) << world.out;
  EXPECT_THAT(VerifyWorld::kinds(world.verify({"/d", "--ranks-expected", "4"})), ElementsAre("error missing_file"));
  EXPECT_THAT(VerifyWorld::kinds(world.verify({"/d", "--ranks-expected", "1"})),
              ElementsAre("error world_size_mismatch"));
  EXPECT_EQ(world.code, 1);
}

TEST_F(Verify, ASourceThatIsNoCheckpointIsAnError) {
  world.put("/text", "hello, this is only text");
  EXPECT_EQ(world.run({"verify", "/text", "--json"}), 4);
  EXPECT_EQ(nlohmann::json::parse(world.out).at("schema"), "shardctl.error/1");
  EXPECT_EQ(world.run({"verify", "/absent"}), 3);
}

TEST_F(Verify, WhatHoldsNoReadableContainerHasFindingsAndExitsWith4) {
  make({"convert", "/m.safetensors", "-o", "/s.pt"});
  world.cut("/s.pt", world.content("/s.pt").size() - 30);
  EXPECT_THAT(VerifyWorld::kinds(world.verify({"/s.pt"})), ElementsAre("error truncated"));
  EXPECT_EQ(world.code, 4);
}

TEST_F(Verify, ADamagedContainerIsStillComparedWithItsManifest) {
  make({"convert", "/m.safetensors", "-o", "/s.pt", "--checksum", "xxh3"});
  world.flip("/s.pt", world.content("/s.pt").size() - 10, 3);
  const auto kinds = VerifyWorld::kinds(world.verify({"/s.pt"}));
  EXPECT_THAT(kinds, Contains("error hash_mismatch"));
  EXPECT_EQ(world.code, 1);
}

TEST_F(Verify, MegatronsIntegrityIsChecked) {
  make({"split", "/m.safetensors", "-o", "/d", "--ranks", "2"});
  const auto sha256 = [&](const std::string& path) {
    Hasher hasher(HashAlgorithm::kSha256);
    hasher.update(world.content(path));
    return hasher.finish_hex();
  };
  world.put("/d/common.pt", "what Megatron keeps");
  nlohmann::json document{{"algorithm", "sha256"}, {"files", nlohmann::json::object()}};
  for (const char* name : {".metadata", "__0_0.distcp", "__1_0.distcp", "common.pt"}) {
    document["files"][name] = sha256(std::string("/d/") + name);
  }
  world.put("/d/integrity.json", document.dump());
  EXPECT_EQ(world.verify({"/d", "--from", "dcp"}).at("findings").size(), 0U) << world.out;
  world.put("/d/common.pt", "what Megatron kept.");
  const auto found = world.verify({"/d", "--from", "dcp"});
  EXPECT_THAT(VerifyWorld::kinds(found), ElementsAre("error hash_mismatch"));
  EXPECT_EQ(found.at("findings")[0].at("file"), "common.pt");
  world.fs->remove_all("/d/common.pt");
  EXPECT_THAT(VerifyWorld::kinds(world.verify({"/d", "--from", "dcp"})), ElementsAre("error missing_file"));
}

/// Objects of ranks may differ; the step that they were saved at may not.
TEST_F(Verify, StepsOfSeveralSavesAreMixed) {
  world.load("golden/2.11.0/ranks_differ_r2", "/r");
  EXPECT_THAT(VerifyWorld::kinds(world.verify({"/r"})), Not(Contains("error mixed_save")));
  std::string file = world.content("/r/rank_1.pt");
  const auto replace = [&file](std::string_view old, std::string_view by) {
    for (std::size_t at = file.find(old); at != std::string::npos; at = file.find(old, at))
      file.replace(at, by.size(), by);
  };
  replace({"stepq\x18K\x07", 8}, {"stepq\x18K\x08", 8});
  replace("\x97\x7d\x42\x4d", "\xdc\x27\x48\x61");  // The CRC-32 of its pickle.
  world.put("/r/rank_1.pt", file);
  const auto found = world.verify({"/r"});
  EXPECT_THAT(VerifyWorld::kinds(found), ElementsAre("error mixed_save", "warning replica_mismatch"));
  EXPECT_THAT(found.dump(),
              HasSubstr("ranks 0 and 1 were saved with different values of 'step' (expected 7, found 8)"));
}

TEST_F(Verify, FilesInFoldersAreCheckedIfACutOneHidesTheCheckpoint) {
  world.load("megatron_legacy/uneven", "/m");
  world.cut("/m/iter_0000005/mp_rank_00_001/model_optim_rng.pt", 100);
  const auto megatron = world.verify({"/m"});
  EXPECT_EQ(world.code, 1) << world.out;
  EXPECT_EQ(megatron.at("checked").at("files"), 3);
  EXPECT_GT(megatron.at("checked").at("crc32"), 0);
  world.load("deepspeed/universal_of_stage1", "/u");
  world.cut("/u/global_step2/mp_rank_00_model_states.pt", 100);
  EXPECT_GT(world.verify({"/u"}).at("checked").at("files"), 3);
  EXPECT_EQ(world.code, 1) << world.out;
}

TEST_F(Verify, AFileOfItemsThatHeldAnObjectDoesNotEndTheCheckOfOthers) {
  world.load("demo/ckpt", "/d");
  const std::string whole = world.content("/d/__1_0.distcp");
  for (const bool is_there : {false, true}) {
    is_there ? world.put("/d/__1_0.distcp", whole.substr(0, 1000)) : world.fs->remove_all("/d/__1_0.distcp");
    const auto found = world.verify({"/d"});
    EXPECT_EQ(world.code, 1) << world.out;
    EXPECT_EQ(found.at("checked").at("files"), is_there ? 5 : 4);
    EXPECT_EQ(found.at("checked").at("tensors"), 8);
    EXPECT_THAT(world.out, HasSubstr("object '"));
  }
}

TEST_F(Verify, AFileOfItemsThatIsLostIsNotCalledCutShort) {
  make({"split", "/m.safetensors", "-o", "/d", "--ranks", "2"});
  world.fs->remove_all("/d/__1_0.distcp");
  EXPECT_THAT(VerifyWorld::kinds(world.verify({"/d"})), ElementsAre("error missing_file"));
  EXPECT_EQ(world.code, 1);
  world.put("/d/__1_0.distcp/more", "a folder in its place");
  EXPECT_THAT(VerifyWorld::kinds(world.verify({"/d"})), ElementsAre("error missing_file"));
  EXPECT_THAT(world.out, HasSubstr("is not a regular file"));
}

TEST_F(Verify, ALostRankIsAFindingOfTheOthers) {
  make({"split", "/m.safetensors", "-o", "/r", "--to", "torch-ranks", "--ranks", "2"});
  world.fs->remove_all("/r/rank-00001-of-00002.pt");
  EXPECT_THAT(VerifyWorld::kinds(world.verify({"/r"})), UnorderedElementsAre("error gap", "error missing_file"));
  EXPECT_EQ(world.code, 1) << "the other file can be read";
}

TEST_F(Verify, PointersInFoldersBelowAreNamedToo) {
  world.load("deepspeed/stage2_robin", "/ds");
  world.load("megatron/dense", "/mg");
  world.load("megatron_legacy/dense", "/ml");
  const std::string pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:4665a5\nsize 5368709120\n";
  for (const auto& [source, file] :
       {std::pair("/ds", "global_step2/mp_rank_00_model_states.pt"), std::pair("/mg", "iter_0000007/common.pt"),
        std::pair("/ml", "iter_0000005/mp_rank_00_000/model_optim_rng.pt")}) {
    world.put(std::string(source) + "/" + file, pointer);
    const auto found = world.verify({source});
    ASSERT_EQ(found.at("findings").size(), 1U) << found;
    EXPECT_EQ(found.at("findings")[0].at("file"), file);
    EXPECT_THAT(found.at("findings")[0].at("detail"), StartsWith("this is a Git LFS pointer"));
  }
}

}  // namespace
}  // namespace shard::app
