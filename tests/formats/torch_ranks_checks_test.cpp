#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "formats/torch_ranks/rank_source.h"
#include "libshard/checkpoint/rank_groups.h"
#include "libshard/core/findings.h"
#include "tests/formats/rank_files.h"
#include "tests/support/expect_error.h"

namespace shard::testing {
namespace {

using test::error_of;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr const char* kSharded = "2.11.0/ranks_sharded_r4";   // ckpt-00000-of-00004.pt, ...
constexpr const char* kDTensors = "2.11.0/ranks_dtensor_r4";  // model_world_size_4_rank_0.pt, ...

std::string sharded(int rank, int world = 4) {
  return "ckpt-0000" + std::to_string(rank) + "-of-0000" + std::to_string(world) + ".pt";
}
std::string dtensor(int rank, int world = 4) {
  return "model_world_size_" + std::to_string(world) + "_rank_" + std::to_string(rank) + ".pt";
}

TEST(RankChecks, AFileUnderAnotherRanksNameIsAWarning) {
  RankFolder folder(kSharded);
  const std::string one = folder.content(sharded(1)), two = folder.content(sharded(2));
  CollectedFindings right;
  folder.open({.findings = &right});
  EXPECT_TRUE(right.warnings().empty());
  folder.put(sharded(1), two);
  folder.put(sharded(2), one);
  CollectedFindings findings;
  folder.open({.findings = &findings});
  EXPECT_TRUE(findings.all().empty());
  ASSERT_EQ(findings.warnings().size(), 2U);
  const Error& warning = findings.warnings()[0];
  EXPECT_EQ(warning.kind(), FindingKind::kRankMismatch);
  EXPECT_EQ(warning.file(), sharded(1));
  EXPECT_THAT(warning.what(), HasSubstr("the file of rank 2 has the name of rank 1's file"));
  EXPECT_EQ(warning.expected(), "rank 1");
  EXPECT_EQ(warning.found(), "rank 2");
}

TEST(RankChecks, NumbersThatAreNoRanksAreNoWarning) {
  RankFolder folder(kSharded), other;
  for (int rank = 0; rank < 4; ++rank) {
    other.put("part-" + std::to_string(4 - rank) + ".pt", folder.content(sharded(rank)));
  }
  CollectedFindings findings;
  other.open({.findings = &findings});
  EXPECT_TRUE(findings.warnings().empty());
}

TEST(RankChecks, FilesRecordTheirGroups) {
  RankFolder folder(kSharded);
  const auto reader = folder.open();
  const auto& groups = dynamic_cast<const RankGroupSource&>(*reader).rank_groups();
  ASSERT_EQ(groups.size(), 4U);
  for (std::int64_t rank = 0; rank < 4; ++rank) {
    const std::optional<RankGroup>& group = groups[static_cast<std::size_t>(rank)];
    ASSERT_TRUE(group.has_value());
    EXPECT_EQ(group->rank, rank);
    EXPECT_EQ(group->world_size, 4);
    EXPECT_EQ(group->local_rank, rank);
    EXPECT_EQ(group->local_world_size, 4);
  }
  // A DTensor records no process group.
  RankFolder dtensors(kDTensors);
  const auto of_dtensors = dtensors.open();
  const auto& other = dynamic_cast<const RankGroupSource&>(*of_dtensors).rank_groups();
  ASSERT_EQ(other.size(), 4U);
  EXPECT_EQ(other[0]->world_size, std::nullopt);
}

TEST(RankChecks, AMissingRankIsNamedWithItsFile) {
  RankFolder folder(kSharded);
  folder.remove(sharded(2));
  const Error error = error_of([&] { folder.open(); });
  EXPECT_EQ(error.code(), ErrorCode::kNotFound);
  EXPECT_EQ(error.kind(), FindingKind::kMissingFile);
  EXPECT_THAT(error.what(), HasSubstr("the file of rank 2 is missing"));
  EXPECT_EQ(error.file(), sharded(2));
  EXPECT_EQ(error.rank(), 2);
  EXPECT_EQ(error.expected(), "4");
  EXPECT_EQ(error.found(), "3");
}

TEST(RankChecks, AMissingRankOfAMeshIsNamed) {
  RankFolder folder(kDTensors);
  folder.remove(dtensor(0));
  folder.remove(dtensor(3));
  const Error error = error_of([&] { folder.open(); });
  EXPECT_EQ(error.code(), ErrorCode::kNotFound);
  EXPECT_THAT(error.what(), HasSubstr("the files of ranks 0, 3 are missing"));
  EXPECT_EQ(error.file(), dtensor(0));
}

TEST(RankChecks, ARankTwiceNamesBothFiles) {
  RankFolder folder(kSharded);
  folder.put(sharded(2), folder.content(sharded(1)));
  const Error error = error_of([&] { folder.open(); });
  EXPECT_EQ(error.code(), ErrorCode::kCorruption);
  EXPECT_EQ(error.kind(), FindingKind::kRankMismatch);
  EXPECT_EQ(error.file(), sharded(2));
  EXPECT_THAT(error.why(), HasSubstr("it and " + sharded(1) + " are both of rank 1"));
  EXPECT_EQ(error.expected(), "each of the ranks 0 to 3 once");
  EXPECT_EQ(error.found(), "rank 1");
}

TEST(RankChecks, MoreFilesThanRanks) {
  RankFolder folder(kSharded);
  folder.put("extra.pt", folder.content(sharded(3)));
  const Error error = error_of([&] { folder.open(); });
  EXPECT_EQ(error.code(), ErrorCode::kCorruption);
  EXPECT_EQ(error.kind(), FindingKind::kExtraFile);
  EXPECT_THAT(error.what(), HasSubstr("there are 5 files of a save of 4 ranks"));
  EXPECT_EQ(error.expected(), "4");
  EXPECT_EQ(error.found(), "5");
}

TEST(RankChecks, SeveralSetsOfFilesInOneFolderAreShownHowToName) {
  RankFolder folder(kDTensors);
  for (int rank = 0; rank < 4; ++rank) folder.put("optim_" + dtensor(rank), folder.content(dtensor(rank)));
  const Error error = error_of([&] { folder.open(); });
  EXPECT_EQ(error.code(), ErrorCode::kCorruption);
  EXPECT_THAT(error.hint(), HasSubstr("the folder has 2 sets of files"));
  EXPECT_THAT(error.hint(), HasSubstr("model_world_size_*_rank_*.pt"));
}

TEST(RankChecks, AFileOfASaveOfAnotherSize) {
  RankFolder folder(kSharded), other("2.11.0/ranks_sharded_r2");
  folder.put(sharded(1), other.content("rank_1.pt"));
  const Error error = error_of([&] { folder.open(); });
  EXPECT_EQ(error.code(), ErrorCode::kCorruption);
  EXPECT_EQ(error.kind(), FindingKind::kWorldSizeMismatch);
  EXPECT_EQ(error.file(), sharded(1));
  EXPECT_EQ(error.expected(), "4");
  EXPECT_EQ(error.found(), "2");
}

TEST(RankChecks, AFileOfASmallerMesh) {
  RankFolder folder(kDTensors), other("2.11.0/ranks_dtensor_r2");
  folder.put(dtensor(1), other.content(dtensor(1, 2)));
  const Error error = error_of([&] { folder.open(); });
  EXPECT_EQ(error.code(), ErrorCode::kCorruption);
  EXPECT_EQ(error.kind(), FindingKind::kWorldSizeMismatch);
  EXPECT_EQ(error.file(), dtensor(1));
  EXPECT_EQ(error.expected(), "a mesh of dp=4");
  EXPECT_EQ(error.found(), "a mesh of dp=2");
}

TEST(RankChecks, ExpectedRanksAreComparedWithTheFiles) {
  RankFolder folder(kSharded);
  OpenOptions options;
  options.ranks_expected = 4;
  EXPECT_EQ(folder.open(options)->catalog().world_size, 4);
  options.ranks_expected = 8;
  const Error error = error_of([&] { folder.open(options); });
  EXPECT_EQ(error.code(), ErrorCode::kCorruption);
  EXPECT_EQ(error.kind(), FindingKind::kWorldSizeMismatch);
  EXPECT_EQ(error.expected(), "8");
  EXPECT_EQ(error.found(), "4");
}

TEST(RankChecks, ANameInOneFileOfAShardedTensorIsAGap) {
  RankFolder folder(kSharded);
  folder.edit(sharded(1), [](Arena&, Value& root) {
    ASSERT_EQ(root.items()[0]->text(), "embed.weight");
    root.set_items(root.items().subspan(2));
  });
  const Error error = error_of([&] { folder.open(); });
  EXPECT_EQ(error.code(), ErrorCode::kCorruption);
  EXPECT_EQ(error.kind(), FindingKind::kGap);
  EXPECT_EQ(error.tensor(), "embed.weight");
  EXPECT_THAT(error.what(), HasSubstr("no file contains the shard of [2, 3] at [2, 0]"));
  EXPECT_THAT(error.why(), HasSubstr("rank 1 has it"));
}

TEST(RankChecks, ADTensorThatOneRankLacksIsAGap) {
  RankFolder folder(kDTensors);
  folder.edit(dtensor(2), [](Arena&, Value& root) { root.set_items(root.items().subspan(2)); });
  const Error error = error_of([&] { folder.open(); });
  EXPECT_EQ(error.kind(), FindingKind::kGap);
  EXPECT_THAT(error.what(), HasSubstr("rank 2's file lacks the tensor"));
}

TEST(RankChecks, ShardedHereAndPlainThereIsNoSave) {
  RankFolder folder(kSharded);
  folder.edit(sharded(3), [](Arena& arena, Value& root) { root.items()[1] = make_int(arena, 3); });
  const Error error = error_of([&] { folder.open(); });
  EXPECT_EQ(error.kind(), FindingKind::kMixedSave);
  EXPECT_EQ(error.file(), sharded(3));
  EXPECT_EQ(error.expected(), "a ShardedTensor");
  EXPECT_EQ(error.found(), "an object");
}

// --- Ranks by names ---

/// Files without a record of their rank: sharded tensors on them are on a mesh of other ranks.
RankFolder plain(const std::vector<std::string>& names) {
  RankFolder folder;
  for (std::size_t i = 0; i < names.size(); ++i) {
    RankFileMaker maker;
    maker.put("w", maker.floats({1}, {static_cast<float>(i)}));
    folder.put(names[i], maker);
  }
  folder.put("layout.json", R"({"schema": "shardctl.layout/1", "mesh": {"tp": 2},
    "rules": [{"match": "w", "shard": [{"axis": "tp", "dim": 0}]}]})");
  return folder;
}

TEST(RanksByNames, TheOnlyNumberThatDiffersIsTheRank) {
  RankFolder folder = plain({"step100-rank1-of-2.pt", "step100-rank0-of-2.pt"});
  const auto reader = folder.open();
  EXPECT_EQ(reader->catalog().files[0].rank, 0);
  EXPECT_THAT(whole<float>(*reader, "w"), ElementsAre(1, 0));
}

TEST(RanksByNames, TwoNumbersThatDifferTellNothing) {
  RankFolder folder = plain({"step1-rank0.pt", "step2-rank1.pt"});
  const Error error = error_of([&] { folder.open(); });
  EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
  EXPECT_THAT(error.what(), HasSubstr("cannot find out which rank wrote this file"));
}

TEST(RanksByNames, ARankPastTheWorldIsRefused) {
  RankFolder folder = plain({"rank1.pt", "rank2.pt"});
  const Error error = error_of([&] { folder.open(); });
  EXPECT_EQ(error.code(), ErrorCode::kCorruption);
  EXPECT_EQ(error.kind(), FindingKind::kRankMismatch);
  EXPECT_EQ(error.file(), "rank2.pt");
  EXPECT_THAT(error.what(), HasSubstr("rank 2 of a save of 2 ranks"));
}

TEST(RanksByNames, NumbersOfPlainTextAreFound) {
  using torch_ranks::differing_numbers;
  EXPECT_THAT(*differing_numbers(std::vector<std::string>{"/a9/r_00.pt", "/a10/r_11.pt"}), ElementsAre(0, 11));
  EXPECT_FALSE(differing_numbers(std::vector<std::string>{"a0.pt", "b1.pt"})) << "other text";
  EXPECT_FALSE(differing_numbers(std::vector<std::string>{"a0.pt"})) << "nothing differs";
  EXPECT_FALSE(differing_numbers(std::vector<std::string>{"a99999999999999999999.pt", "a1.pt"})) << "no number";
}

TEST(RanksByNames, AMissingNameKeepsItsZeros) {
  using torch_ranks::name_of_rank;
  const std::vector<std::string> names{"/x/step5-r00.pt", "/x/step5-r02.pt"};
  EXPECT_EQ(name_of_rank(names, std::vector<std::int64_t>{0, 2}, 1), "step5-r01.pt");
  EXPECT_EQ(name_of_rank(names, std::vector<std::int64_t>{2, 0}, 1), "") << "the names tell something else";
}

TEST(RanksByNames, ATemplateOfALayoutDocumentSaysTheCoordinate) {
  using torch_ranks::rank_by_template;
  const std::vector<MeshAxis> mesh{{"dp", 2}, {"tp", 4}};
  EXPECT_EQ(rank_by_template("r-{dp}-{tp}.pt", mesh, "r-1-02.pt"), 6);
  EXPECT_EQ(rank_by_template("r-{rank}.pt", mesh, "r-00005.pt"), 5);
  EXPECT_FALSE(rank_by_template("r-{dp}-{tp}.pt", mesh, "r-1-4.pt")) << "past the axis";
  EXPECT_FALSE(rank_by_template("r-{dp}-{tp}.pt", mesh, "r-1-3.pth")) << "more text";
  EXPECT_FALSE(rank_by_template("r-{pp}.pt", mesh, "r-1.pt")) << "no such axis";
}

}  // namespace
}  // namespace shard::testing
